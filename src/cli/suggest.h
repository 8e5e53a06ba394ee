// What to say about arguments that no command knows.
#pragma once

namespace CLI {
class App;
}

namespace mimo {

// Whether a failed parse left arguments that nothing took.
bool has_unknown_arguments(const CLI::App& app);

// Names each unknown argument of a failed parse and the option it resembles; returns the exit status.
int report_unknown_arguments(const CLI::App& app);

}  // namespace mimo
