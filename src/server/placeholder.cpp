#include "server/exchange.h"
