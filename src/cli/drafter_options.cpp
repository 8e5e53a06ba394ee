#include "cli/drafter_options.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <system_error>

#include "core/file.h"
#include "model/dflash.h"
#include "model/mtp.h"
#include "ops/attention_select.h"

namespace mimo {
namespace {

// The options that were given, as they were given; all of them need a drafter.
std::vector<std::string> given(const DrafterOptions& options) {
  std::vector<std::string> names;
  const auto add = [&](const char* flag, const auto& value) {
    if (value) names.push_back(fmt::format("--speculative-{} {}", flag, *value));
  };
  add("num-draft-tokens", options.num_draft_tokens);
  add("adaptive-width", options.adaptive_width);
  add("batch-widths", options.batch_widths);
  add("confidence-threshold", options.confidence_threshold);
  add("max-context", options.max_context);
  add("min-accept-length", options.min_accept_length);
  return names;
}

std::vector<std::string> given_for_dflash(const DrafterOptions& options) {
  std::vector<std::string> names;
  const auto add = [&](const char* flag, const auto& value) {
    if (value) names.push_back(fmt::format("--speculative-{} {}", flag, *value));
  };
  add("draft-model-path", options.directory);
  add("draft-config", options.random_config);
  add("dflash-final-tap", options.final_tap);
  add("dflash-window", options.window);
  if (options.attention != "auto" && options.attention != "cpu") {
    names.push_back(fmt::format("{} {}", kDraftAttentionFlag, options.attention));
  }
  return names;
}

Result<DrafterChoice> choose_kind(const DrafterOptions& options, const std::string& directory) {
  if (options.algorithm == "NONE")
    return DrafterChoice{DrafterKind::kNone, {}, {}, "--speculative-algorithm NONE"};
  if (options.algorithm == "MTP")
    return DrafterChoice{DrafterKind::kMtp, {}, {}, "--speculative-algorithm MTP"};
  const bool automatic = options.algorithm == "AUTO";
  if (options.directory && options.random_config) {
    return fail(ErrorCode::kInvalidArgument,
                "--speculative-draft-model-path {} and --speculative-draft-config {}: expected one of them",
                *options.directory, *options.random_config);
  }
  if (options.directory) {
    return DrafterChoice{DrafterKind::kDFlash, *options.directory, {}, "--speculative-draft-model-path"};
  }
  if (options.random_config) {
    return DrafterChoice{DrafterKind::kDFlash, {}, *options.random_config, "random weights"};
  }
  // By the folder alone: one that was copied in part is an error to be told, not a checkpoint without a drafter.
  std::error_code error;
  if (!directory.empty() && std::filesystem::is_directory(directory + "/dflash", error)) {
    return DrafterChoice{DrafterKind::kDFlash,
                         directory + "/dflash",
                         {},
                         automatic ? "the checkpoint ships dflash/" : "--speculative-algorithm DFLASH"};
  }
  if (automatic) {
    return DrafterChoice{DrafterKind::kNone,
                         {},
                         {},
                         directory.empty() ? "random weights have none" : "the checkpoint ships no dflash/"};
  }
  return fail(ErrorCode::kNotFound,
              "--speculative-algorithm DFLASH: {}/dflash not found; expected a drafter there, or "
              "--speculative-draft-model-path DIR",
              directory.empty() ? std::string("(random weights)") : directory);
}

Result<std::unique_ptr<DFlashDrafter>> load_dflash(const DrafterChoice& choice, const DrafterSetup& setup,
                                                   const TargetModel& target, Ops& ops,
                                                   const DFlashDrafter::Options& options) {
  if (choice.random_config.empty()) return DFlashDrafter::load(choice.directory, target, ops, options);
  Result<DFlashConfig> config = read_drafter_config(choice, target.config());
  if (!config) return forward_error(config);
  return DFlashDrafter::load_random(std::move(*config), setup.seed, target, ops, options);
}

Error refused_drafter(Error error) {
  error.message += " (the drafter is refused; --speculative-algorithm NONE runs without one)";
  return error;
}

}  // namespace

void add_drafter_options(CLI::App& command, DrafterOptions& options) {
  command
      .add_option(
          "--speculative-algorithm", options.algorithm,
          "Who drafts tokens for the model to verify: DFLASH, MTP (the checkpoint's heads), NONE; AUTO: "
          "DFLASH if the checkpoint ships dflash/. The answers are the same")
      ->check(CLI::IsMember({"AUTO", "DFLASH", "MTP", "NONE"}))
      ->capture_default_str();
  command
      .add_option("--speculative-num-draft-tokens", options.num_draft_tokens,
                  "Drafts verified a step, not counting the token they follow; default: all of a block")
      ->check(CLI::Range(1, 1024));
  command
      .add_option(
          "--speculative-adaptive-width", options.adaptive_width,
          "on: verify as many drafts as pay, by measured times and acceptance; off: always all. Default: "
          "on unless --speculative-num-draft-tokens or --speculative-batch-widths is given")
      ->check(CLI::IsMember({"on", "off"}));
  command.add_option("--speculative-draft-model-path", options.directory,
                     "Directory of the DFlash drafter; default: dflash/ of the checkpoint");
  command
      .add_option("--speculative-dflash-final-tap", options.final_tap,
                  "Last target state that the drafter reads: pre_norm (default), post_norm")
      ->check(CLI::IsMember({"pre_norm", "post_norm"}));
  command
      .add_option("--speculative-dflash-window", options.window,
                  "The drafter's window ends before each row (row, default) or the block (anchor)")
      ->check(CLI::IsMember({"row", "anchor"}));
  command
      .add_option(kDraftAttentionFlag, options.attention,
                  "Attention kernel of the DFlash drafter's blocks; as --attention-backend")
      ->check(CLI::IsMember(attention_backend_names()))
      ->capture_default_str();
  command.add_option("--speculative-batch-widths", options.batch_widths,
                     "Drafts by number of decoding requests, such as 1:7,4:5,16:3,32:0");
  command
      .add_option(
          "--speculative-confidence-threshold", options.confidence_threshold,
          "Verify drafts up to the first at which the product of the drafter's probabilities falls below "
          "this; 0 (default): all")
      ->check(CLI::Range(0.0, 1.0));
  command
      .add_option("--speculative-max-context", options.max_context,
                  "No drafts for a request once it has this many tokens; 0 (default): no limit")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  command
      .add_option("--speculative-min-accept-length", options.min_accept_length,
                  "Pause the drafts of a request whose accept length stays below this; default 1.3; 0: never")
      ->check(CLI::Range(0.0, 1024.0));
}

Result<DrafterChoice> choose_drafter(DrafterOptions& options, const std::string& directory) {
  Result<DrafterChoice> choice = choose_kind(options, directory);
  if (!choice) return choice;
  std::vector<std::string> useless;
  if (choice->kind == DrafterKind::kNone) useless = given(options);
  if (choice->kind != DrafterKind::kDFlash) {
    for (std::string& name : given_for_dflash(options)) useless.push_back(std::move(name));
  }
  if (!useless.empty()) {
    return fail(ErrorCode::kInvalidArgument, "{}: has no effect, since {} ({})", useless.front(),
                choice->kind == DrafterKind::kMtp ? "the drafter is MTP" : "nothing is drafted",
                choice->reason);
  }
  SpeculationOptions& speculation = options.speculation;
  if (options.batch_widths) {
    Result<std::vector<BatchWidth>> widths = parse_batch_widths(*options.batch_widths);
    if (!widths) return tl::unexpected(widths.error().within("--speculative-batch-widths"));
    speculation.batch_widths = std::move(*widths);
  }
  speculation.tune_width = options.adaptive_width ? *options.adaptive_width == "on"
                                                  : !options.num_draft_tokens && !options.batch_widths;
  speculation.num_draft_tokens = options.num_draft_tokens.value_or(speculation.num_draft_tokens);
  speculation.confidence_threshold = options.confidence_threshold.value_or(speculation.confidence_threshold);
  speculation.max_context = options.max_context.value_or(speculation.max_context);
  speculation.min_accept_length = options.min_accept_length.value_or(speculation.min_accept_length);
  return choice;
}

Result<DFlashConfig> read_drafter_config(const DrafterChoice& choice, const ModelConfig& target) {
  if (choice.random_config.empty()) return load_dflash_config(choice.directory, target);
  const Result<std::string> text = read_file(choice.random_config, 1u << 20);
  if (!text) return forward_error(text);
  return parse_dflash_config(*text, choice.random_config, target);
}

Status check_drafter(const DrafterChoice& choice, const DrafterOptions& options, const WeightSource& source) {
  if (choice.kind == DrafterKind::kNone) return {};
  if (choice.kind == DrafterKind::kMtp) {
    if (source.mtp_heads() > 0) return validate(options.speculation, source.mtp_heads());
    return fail(ErrorCode::kNotFound,
                "--speculative-algorithm MTP: the checkpoint has no MTP heads (model.mtp.layers.*)");
  }
  const Result<DFlashConfig> config = read_drafter_config(choice, source.config());
  if (!config) return tl::unexpected(refused_drafter(config.error()));
  return validate(options.speculation, config->block - 1);
}

Result<std::unique_ptr<Drafter>> load_drafter(const DrafterChoice& choice, const DrafterOptions& options,
                                              const DrafterSetup& setup, WeightSource& source,
                                              const TargetModel& target, Ops& ops) {
  std::unique_ptr<Drafter> drafter;
  if (choice.kind == DrafterKind::kNone) return drafter;
  if (choice.kind == DrafterKind::kMtp) {
    MtpDrafter::Options mtp;
    mtp.heads = options.speculation.num_draft_tokens;
    mtp.max_requests = setup.max_requests;
    mtp.page_size = setup.page_size;
    mtp.kv = setup.kv;
    mtp.vocab = setup.vocab;
    Result<std::unique_ptr<MtpDrafter>> loaded = MtpDrafter::load(source, target, ops, mtp);
    if (!loaded) return tl::unexpected(refused_drafter(loaded.error()));
    drafter = std::move(*loaded);
  } else {
    DFlashDrafter::Options dflash;
    dflash.max_requests = setup.max_requests;
    dflash.page_size = setup.page_size;
    dflash.kv = setup.kv;
    dflash.vocab = setup.vocab;
    if (options.final_tap == "post_norm") dflash.final_tap = DFlashDrafter::FinalTap::kPostNorm;
    if (options.window == "anchor") dflash.window_start = WindowStart::kAnchor;
    Result<std::unique_ptr<DFlashDrafter>> loaded = load_dflash(choice, setup, target, ops, dflash);
    if (!loaded) return tl::unexpected(refused_drafter(loaded.error()));
    drafter = std::move(*loaded);
  }
  return drafter;
}

std::string describe_drafter(const DrafterChoice& choice, const Drafter* drafter) {
  if (drafter == nullptr) return fmt::format("none ({})", choice.reason);
  return fmt::format("{}, {} drafts a step, {:.2f} MB + {:.2f} MB a request ({})", drafter->name(),
                     drafter->max_drafts(), static_cast<double>(drafter->weight_bytes()) / 1e6,
                     static_cast<double>(drafter->state_bytes()) / 1e6, choice.reason);
}

}  // namespace mimo
