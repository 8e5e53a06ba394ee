// Fields that are known but not served, and fields that are known to change no answer.
#pragma once

#include "api/api_request.h"
#include "api/object_reader.h"

namespace mimo {

// Adds a problem for the first field of the body that asks for something this server does not do on this
// route. A field with a value that asks for nothing (false, 0, an empty list, ...) passes.
void refuse_unsupported_fields(ObjectReader& body, ApiRoute route);

// Marks fields as known that no answer depends on.
void ignore_harmless_fields(ObjectReader& body);

}  // namespace mimo
