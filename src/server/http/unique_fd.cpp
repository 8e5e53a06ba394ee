#include "server/http/unique_fd.h"

#include <unistd.h>

namespace mimo::http {

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace mimo::http
