//! Table of DeepSpeed's keys: allowed values, default, and treatment by Bonfire.
//!
//! Keys and defaults are those of DeepSpeed 0.19: `runtime/config.py`, `runtime/zero/config.py`,
//! `runtime/zero/offload_config.py`, and the page "DeepSpeed Configuration JSON" of its documentation.
//! Those of `mics_*` are of earlier versions.

use Kind::{Betas, Bool, Count, FromZero, Number, Open, Path, Positive, Stage, Text};
use Treatment::{NoEffect, Refused, Used};

/// A key, with dots between the objects that it is in.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Key {
    /// The full path, as in `zero_optimization.stage`.
    pub path: &'static str,
    /// The values that it takes.
    pub kind: Kind,
    /// The default as a JSON text.
    pub default: &'static str,
    /// The treatment of the key by Bonfire.
    pub treatment: Treatment,
    /// Allows `"auto"`, for which the program then gives the value.
    pub auto: bool,
}

/// The values that a key takes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Kind {
    /// A boolean: `true` or `false`.
    Bool,
    /// An integer from 0, also as `5e8`.
    Count,
    /// An integer from 1 on.
    Positive,
    /// Any number, integer or float.
    Number,
    /// A number that is not negative.
    FromZero,
    /// Two numbers from 0 and below 1.
    Betas,
    /// A stage of ZeRO, 0 to 3.
    Stage,
    /// One of these texts, in whatever case.
    Text(&'static [&'static str]),
    /// A text that names a path.
    Path,
    /// An object that is not read, because Bonfire has no equivalent.
    Open,
}

/// The treatment of the key by Bonfire.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Treatment {
    /// Has DeepSpeed's effect. The value reaches the training: a test trains with another value for each such key.
    Used,
    /// Has no effect here. An `"auto"` of such a key needs no answer.
    NoEffect(&'static str),
    /// Causes an error, unless the value is the default, or an object that switches the feature off.
    Refused(&'static str),
}

const fn key(path: &'static str, kind: Kind, default: &'static str, treatment: Treatment) -> Key {
    Key { path, kind, default, treatment, auto: false }
}

const fn auto(path: &'static str, kind: Kind, default: &'static str) -> Key {
    key(path, kind, default, Used).or_auto()
}

impl Key {
    const fn or_auto(self) -> Self {
        Self { auto: true, ..self }
    }
}

const PLAN: &str = "Bonfire plans its own memory and messages";
const MONITOR: &str = "Bonfire's journal writes curves; see Monitoring in the book";
const QUANTISED: &str = "Bonfire sends values whole, or compresses gradients (16 bits, PowerSGD)";
const BETA: &str = "betas stay as they are, and only the rate goes up and down";
const ABSENT: &str = "Bonfire has nothing like it; take the block out, or set enabled to false";
const WEIGHTS: &str = "the program gives the weights of its layers";
const BOUNDARY: &str = "each rank of tensor parallelism sends the whole output of a stage";
const DIVIDED: &str = "the program divides the layers; see Tensor parallelism in the book";
const COPYING: &str =
    "host memory is where the CPU computes; copies to GPUs are Bonfire's to arrange";

const DTYPES: &[&str] = &["fp32", "fp16", "bf16"];

/// All keys but those of `optimizer.params` and `scheduler.params`, which depend on the type.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    auto("train_batch_size", Positive, "null"),
    auto("train_micro_batch_size_per_gpu", Positive, "null"),
    auto("gradient_accumulation_steps", Positive, "null"),
    key("optimizer.type", Text(&OPTIMIZERS), "null", Used),
    key("optimizer.params", Open, "{}", Used),
    key("optimizer.legacy_fusion", Bool, "false", NoEffect("every optimizer is fused")),
    key("scheduler.type", Text(&SCHEDULERS), "null", Used),
    key("scheduler.params", Open, "{}", Used),
    auto("gradient_clipping", FromZero, "1"),
    key("prescale_gradients", Bool, "false", NoEffect("the mean is taken so that nothing overflows")),
    key("gradient_predivide_factor", Number, "1", NoEffect("the mean is taken so that nothing overflows")),
    key("gradient_allreduce_op", Text(&["mean", "sum"]), "\"mean\"", Refused("gradients are averaged; multiply the loss by the number of ranks for their sum")),
    key("communication_data_type", Text(DTYPES), "null", Used),
    key("seq_parallel_communication_data_type", Text(DTYPES), "\"fp32\"", NoEffect("context parallelism sends tensors in their own type")),
    key("sparse_gradients", Bool, "false", Refused("gradients are dense in Burn")),
    key("disable_allgather", Bool, "false", NoEffect(PLAN)),
    key("data_types.grad_accum_dtype", Text(DTYPES), "\"fp32\"", Refused("gradients are added in the type of their parameters, which is fp32")),
    key("data_types.param_dtype", Text(DTYPES), "null", Refused("parameters have the type that the model gives them")),
    key("data_types.buffer_dtype", Text(DTYPES), "null", Refused("buffers have the type that the model gives them")),
    key("torch_autocast", Open, "null", Refused("use fp16 or bf16")),
    key("managed_gradient_accumulation", Bool, "true", Refused("steps are counted by the trainer")),
    key("vocabulary_size", Positive, "null", NoEffect("the model sets it")),
    key("disable_python_gc", Bool, "false", NoEffect("there is no Python")),
    key("log_level", Path, "null", NoEffect("BONFIRE_LOG sets it")),
    key("expert_parallel", Open, "null", Refused(ABSENT)),
    key("use_data_before_expert_parallelism", Bool, "false", NoEffect("there are no experts")),
    auto("fp16.enabled", Bool, "false"),
    key("fp16.auto_cast", Bool, "false", NoEffect("the model casts its inputs; see Mixed precision in the book")),
    key("fp16.loss_scale", FromZero, "0", Used),
    key("fp16.initial_scale_power", Count, "16", Used),
    key("fp16.loss_scale_window", Positive, "1000", Used),
    key("fp16.hysteresis", Positive, "2", Used),
    key("fp16.consecutive_hysteresis", Bool, "false", Used),
    key("fp16.min_loss_scale", Positive, "1", Used),
    key("fp16.fp16_master_weights_and_grads", Bool, "false", Refused("parameters stay in 32 bits")),
    auto("bf16.enabled", Bool, "false"),
    key("bf16.immediate_grad_update", Bool, "false", NoEffect("gradients are added as they come")),
    key("bf16.check_grad_overflow", Bool, "true", Used),
    key("bf16.bf16_master_weights_and_grads", Bool, "false", Refused("parameters stay in 32 bits")),
    key("bf16.bf16_optimizer_states", Bool, "false", Refused("moments stay in 32 bits")),
    key("amp.enabled", Bool, "false", Refused("it is NVIDIA's apex; use fp16 or bf16")),
    key("amp.opt_level", Path, "\"O1\"", NoEffect("amp is off")),
    auto("zero_optimization.stage", Stage, "0"),
    key("zero_optimization.contiguous_gradients", Bool, "true", NoEffect("buckets are contiguous")),
    key("zero_optimization.reduce_scatter", Bool, "true", NoEffect(PLAN)),
    auto("zero_optimization.reduce_bucket_size", Count, "5e8"),
    key("zero_optimization.use_multi_rank_bucket_allreduce", Bool, "true", NoEffect(PLAN)),
    key("zero_optimization.allgather_partitions", Bool, "true", NoEffect(PLAN)),
    key("zero_optimization.allgather_bucket_size", Count, "5e8", NoEffect(PLAN)),
    key("zero_optimization.overlap_comm", Bool, "null", NoEffect("gradients are always sent while backward runs")),
    key("zero_optimization.load_from_fp32_weights", Bool, "true", NoEffect("parameters are saved in 32 bits")),
    key("zero_optimization.elastic_checkpoint", Bool, "false", NoEffect("every checkpoint resumes on any number of ranks")),
    auto("zero_optimization.offload_optimizer.device", Text(&OFFLOADS), "\"none\""),
    auto("zero_optimization.offload_optimizer.nvme_path", Path, "null"),
    key("zero_optimization.offload_optimizer.pin_memory", Bool, "true", NoEffect(COPYING)),
    key("zero_optimization.offload_optimizer.buffer_count", Positive, "4", NoEffect(COPYING)),
    key("zero_optimization.offload_optimizer.pipeline_read", Bool, "false", NoEffect(COPYING)),
    key("zero_optimization.offload_optimizer.pipeline_write", Bool, "false", NoEffect(COPYING)),
    key("zero_optimization.offload_optimizer.fast_init", Bool, "false", NoEffect(COPYING)),
    key("zero_optimization.offload_optimizer.ratio", Number, "1", Refused("all of the state is offloaded, or none")),
    auto("zero_optimization.offload_param.device", Text(&OFFLOADS), "\"none\""),
    auto("zero_optimization.offload_param.nvme_path", Path, "null"),
    key("zero_optimization.offload_param.pin_memory", Bool, "true", NoEffect(COPYING)),
    key("zero_optimization.offload_param.buffer_count", Positive, "5", NoEffect(COPYING)),
    key("zero_optimization.offload_param.buffer_size", Count, "1e8", NoEffect(COPYING)),
    key("zero_optimization.offload_param.max_in_cpu", Count, "1e9", NoEffect(COPYING)),
    key("zero_optimization.offload_optimizer.super_offload", Bool, "false", Refused(ABSENT)),
    key("zero_optimization.offload_optimizer.cpuadam_cores_perc", Number, "0.8", NoEffect(COPYING)),
    key("zero_optimization.compute_grad_norm", Bool, "true", NoEffect("the norm is computed where it is asked for")),
    key("zero_optimization.zenflow", Open, "null", Refused(ABSENT)),
    key("zero_optimization.parameter_alignment", Bool, "false", NoEffect(PLAN)),
    key("zero_optimization.save_muon_momentum_buffer_in_memory", Bool, "false", NoEffect("moments are in memory")),
    key("zero_optimization.leaf_module", Open, "null", NoEffect("gathers go by parameter")),
    key("zero_optimization.stage3_allgather_sequential", Bool, "false", NoEffect(PLAN)),
    key("zero_optimization.sub_group_size", Count, "1e9", NoEffect("the optimizer goes by parameter")),
    key("zero_optimization.stage3_max_live_parameters", Count, "1e9", NoEffect("a parameter is there while it is used")),
    key("zero_optimization.stage3_max_reuse_distance", Count, "1e9", NoEffect("a parameter is there while it is used")),
    key("zero_optimization.stage3_prefetch_bucket_size", Count, "5e7", NoEffect(PLAN)).or_auto(),
    key("zero_optimization.stage3_param_persistence_threshold", Count, "1e5", NoEffect("parameters with fewer than 1024 elements stay whole")).or_auto(),
    key("zero_optimization.stage3_model_persistence_threshold", Count, "9007199254740991", NoEffect("only rows that can be cut are")),
    key("zero_optimization.stage3_gather_16bit_weights_on_model_save", Bool, "false", NoEffect("save_weights gathers whatever the placement")).or_auto(),
    key("zero_optimization.stage3_module_granularity_threshold", Count, "0", NoEffect("gathers go by parameter")),
    key("zero_optimization.stage3_use_all_reduce_for_fetch_params", Bool, "false", NoEffect(PLAN)),
    key("zero_optimization.ignore_unused_parameters", Bool, "true", NoEffect("unused parameters are seen, and named")),
    key("zero_optimization.legacy_stage1", Bool, "false", NoEffect("stage 1 is as it is now")),
    key("zero_optimization.round_robin_gradients", Bool, "false", NoEffect("rows are divided evenly")),
    key("zero_optimization.zero_hpz_partition_size", Positive, "1", Used),
    key("zero_optimization.zero_quantized_weights", Bool, "false", Refused(QUANTISED)),
    key("zero_optimization.zero_quantized_nontrainable_weights", Bool, "false", Refused(QUANTISED)),
    key("zero_optimization.zero_quantized_gradients", Bool, "false", Refused(QUANTISED)),
    key("zero_optimization.zeropp_loco_param", Open, "null", Refused(QUANTISED)),
    key("zero_optimization.mics_shard_size", Number, "-1", Used),
    key("zero_optimization.mics_hierarchical_params_gather", Bool, "false", NoEffect(PLAN)),
    key("zero_optimization.memory_efficient_linear", Bool, "true", NoEffect("layers are Burn's")),
    key("zero_optimization.pipeline_loading_checkpoint", Bool, "false", NoEffect("checkpoints are read by tensor")),
    key("zero_optimization.override_module_apply", Bool, "true", NoEffect("models are built by Burn")),
    key("zero_optimization.log_trace_cache_warnings", Bool, "false", NoEffect("there is no such cache")),
    key("zero_optimization.enable_sanity_checks", Bool, "false", NoEffect("they are always on")),
    key("activation_checkpointing.partition_activations", Bool, "false", NoEffect("each rank of tensor parallelism keeps whole inputs of blocks")),
    key("activation_checkpointing.cpu_checkpointing", Bool, "false", Used),
    key("activation_checkpointing.contiguous_memory_optimization", Bool, "false", NoEffect("Burn pools its memory")),
    key("activation_checkpointing.number_checkpoints", Positive, "null", NoEffect("it sizes the buffer of contiguous_memory_optimization, and Burn pools its memory")),
    key("activation_checkpointing.synchronize_checkpoint_boundary", Bool, "false", NoEffect("nothing needs to wait there")),
    key("activation_checkpointing.profile", Bool, "false", NoEffect(MONITOR)),
    key("steps_per_print", Positive, "null", Used),
    key("wall_clock_breakdown", Bool, "false", NoEffect("every report has the time of each part of a step")),
    key("memory_breakdown", Bool, "false", NoEffect(MONITOR)),
    key("dump_state", Bool, "false", NoEffect("the resolved configuration can be printed")),
    key("checkpoint.tag_validation", Text(&["warn", "ignore", "fail"]), "\"warn\"", NoEffect("ranks cannot save different steps")),
    key("checkpoint.load_universal", Bool, "false", NoEffect("every checkpoint is universal")),
    key("checkpoint.use_node_local_storage", Bool, "false", Refused("rank 0 writes for all, wherever its folder is")),
    key("checkpoint.parallel_write.pipeline_stage", Bool, "false", Refused("rank 0 writes for all")),
    key("zero_allow_untested_optimizer", Bool, "false", NoEffect("an optimizer that needs whole parameters is found out")),
    key("zero_force_ds_cpu_optimizer", Bool, "true", NoEffect("the optimizers of Bonfire run on every device")),
    key("dataloader_drop_last", Bool, "false", Used),
    key("aio.block_size", Positive, "1048576", NoEffect(COPYING)),
    key("aio.queue_depth", Positive, "8", NoEffect(COPYING)),
    key("aio.thread_count", Positive, "1", NoEffect(COPYING)),
    key("aio.intra_op_parallelism", Positive, "1", NoEffect(COPYING)),
    key("aio.single_submit", Bool, "false", NoEffect(COPYING)),
    key("aio.overlap_events", Bool, "true", NoEffect(COPYING)),
    key("aio.use_gds", Bool, "false", NoEffect(COPYING)),
    key("tensorboard.enabled", Bool, "false", Used),
    key("tensorboard.output_path", Path, "\"\"", Used),
    key("tensorboard.job_name", Path, "\"DeepSpeedJobName\"", Used),
    key("wandb", Open, "null", Refused(MONITOR)),
    key("comet", Open, "null", Refused(MONITOR)),
    key("csv_monitor", Open, "null", Refused(MONITOR)),
    key("comms_logger", Open, "null", Refused(MONITOR)),
    key("flops_profiler", Open, "null", Refused(MONITOR)),
    key("autotuning", Open, "null", Refused(ABSENT)),
    key("elasticity", Open, "null", Refused("a job keeps its number of ranks; start it again with another number, and it resumes from its checkpoint")),
    key("weight_quantization", Open, "null", Refused(ABSENT)),
    key("compression_training", Open, "null", Refused(ABSENT)),
    key("data_efficiency", Open, "null", Refused(ABSENT)),
    key("curriculum_learning", Open, "null", Refused(ABSENT)),
    key("progressive_layer_drop", Open, "null", Refused(ABSENT)),
    key("eigenvalue", Open, "null", Refused(ABSENT)),
    key("sparse_attention", Open, "null", Refused(ABSENT)),
    key("hybrid_engine", Open, "null", Refused(ABSENT)),
    key("nebula", Open, "null", Refused(ABSENT)),
    key("compile", Open, "null", Refused(ABSENT)),
    auto("pipeline.stages", Positive, "null"),
    key("pipeline.partition", Path, "\"best\"", NoEffect(WEIGHTS)),
    key("pipeline.seed_layers", Bool, "false", NoEffect("the program makes its layers")),
    key("pipeline.activation_checkpoint_interval", Count, "0", NoEffect("the model says which blocks it runs by bonfire::trainer::recompute")),
    key("pipeline.pipe_partitioned", Bool, "true", NoEffect(BOUNDARY)),
    key("pipeline.grad_partitioned", Bool, "true", NoEffect(BOUNDARY)),
    key("tensor_parallel.autotp_size", Count, "0", Used),
    key("tensor_parallel.dtype", Path, "\"fp16\"", NoEffect("fp16 and bf16 set the type of passes")),
    key("tensor_parallel.tp.tp_size", Positive, "1", NoEffect("autotp_size has the number of ranks")),
    key("tensor_parallel.tp.tp_grain_size", Positive, "1", NoEffect("DeepSpeed does not use it in a training")),
    key("tensor_parallel.tp_overlap_comm", Bool, "false", NoEffect(PLAN)),
    key("tensor_parallel.partition_config", Open, "null", Refused(DIVIDED)),
    key("tensor_parallel.preset_model", Path, "null", NoEffect(DIVIDED)),
    key("tensor_parallel.keep_module_on_host", Bool, "false", NoEffect("the program loads its model")),
    key("tensor_parallel.replace_with_kernel_inject", Bool, "false", Refused(ABSENT)),
];

/// Old names, each with its successor.
pub(crate) const ALIASES: &[(&str, &str)] = &[
    ("bfloat16", "bf16"),
    (
        "zero_optimization.stage3_gather_fp16_weights_on_model_save",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    ),
];

/// Old switches that an object with a device has replaced.
pub(crate) const SWITCHES: &[(&str, &str)] = &[
    ("zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device"),
    ("zero_optimization.cpu_offload_params", "zero_optimization.offload_param.device"),
    ("zero_optimization.cpu_offload_param", "zero_optimization.offload_param.device"),
    (
        "zero_optimization.cpu_offload_use_pin_memory",
        "zero_optimization.offload_optimizer.pin_memory",
    ),
];

const OFFLOADS: [&str; 3] = ["none", "cpu", "nvme"];

/// DeepSpeed's optimizers; [`of_optimizer`] has those of Bonfire.
const OPTIMIZERS: [&str; 11] = [
    "Adam",
    "AdamW",
    "SGD",
    "Lamb",
    "Lion",
    "Muon",
    "Adagrad",
    "OneBitAdam",
    "ZeroOneAdam",
    "OneBitLamb",
    "MuAdam",
];

const SCHEDULERS: [&str; 5] =
    ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"];

const LR: Key = auto("lr", FromZero, "1e-3");
const BETAS: Key = auto("betas", Betas, "[0.9, 0.999]");
const EPS: Key = auto("eps", FromZero, "1e-8");
const DECAY: Key = auto("weight_decay", FromZero, "0");

const fn adam(decay: &'static str, mode: Treatment) -> [Key; 8] {
    [
        LR,
        BETAS,
        EPS,
        Key { default: decay, ..DECAY },
        key("bias_correction", Bool, "true", Refused("Adam corrects its bias")),
        key("amsgrad", Bool, "false", Refused("Bonfire's Adam has none")),
        key("adam_w_mode", Bool, "true", mode),
        key("torch_adam", Bool, "false", NoEffect(TORCH)),
    ]
}

const TORCH: &str = "every optimizer is fused; but weight_decay is 0.01 if the file does not say it, as it is torch's";

/// The keys of `optimizer.params` of a type that Bonfire has. `is_torchs` selects torch's AdamW, whose weight decay is
/// another.
pub(crate) fn of_optimizer(name: &str, is_torchs: bool) -> Option<&'static [Key]> {
    const ALWAYS: Treatment = NoEffect("AdamW always decays so");
    Some(match (name, is_torchs) {
        ("Adam", false) => const { &adam("0", Used) },
        ("Adam", true) => const { &adam("1e-2", Used) },
        ("AdamW", false) => const { &adam("0", ALWAYS) },
        ("AdamW", true) => const { &adam("1e-2", ALWAYS) },
        ("SGD", _) => {
            const {
                &[
                    LR,
                    key("momentum", FromZero, "0", Used),
                    key("dampening", Number, "0", Used),
                    DECAY,
                    key("nesterov", Bool, "false", Used),
                ]
            }
        }
        ("Lion", _) => const { &[LR, Key { default: "[0.9, 0.99]", ..BETAS }, DECAY] },
        ("Muon", _) => {
            const {
                &[
                    auto("lr", FromZero, "null"),
                    key("momentum", FromZero, "0.95", Used),
                    DECAY,
                    Key { default: "[0.9, 0.95]", ..BETAS },
                    Key { default: "1e-10", ..EPS },
                    key("muon_lr", FromZero, "null", Used),
                    key("adam_lr", FromZero, "null", Used),
                    key("ns_method", Text(&["gram", "standard"]), "\"gram\"", NoEffect(METHOD)),
                ]
            }
        }
        _ => return None,
    })
}

const METHOD: &str = "both ways compute the same";

const WARMUP_MIN: Key = auto("warmup_min_lr", FromZero, "0");
/// Without it the rate of the optimizer.
const WARMUP_MAX: Key = auto("warmup_max_lr", FromZero, "null");
const WARMUP_STEPS: Key = auto("warmup_num_steps", Count, "1000");
const WARMUP_TYPE: Key = key("warmup_type", Text(&["log", "linear"]), "\"log\"", Used);
const TOTAL: Key = auto("total_num_steps", Positive, "null");
const LAST: Key = key("last_batch_iteration", Number, "-1", NoEffect("checkpoints know the step"));

pub(crate) fn of_scheduler(name: &str) -> &'static [Key] {
    match name {
        "WarmupLR" => const { &[WARMUP_MIN, WARMUP_MAX, WARMUP_STEPS, WARMUP_TYPE, LAST] },
        "WarmupDecayLR" => {
            const {
                &[
                    TOTAL,
                    WARMUP_MIN,
                    Key { default: "1e-3", ..WARMUP_MAX },
                    WARMUP_STEPS,
                    WARMUP_TYPE,
                    LAST,
                ]
            }
        }
        "WarmupCosineLR" => {
            const {
                &[
                    TOTAL,
                    key("warmup_min_ratio", FromZero, "0", Used),
                    WARMUP_STEPS,
                    key("cos_min_ratio", FromZero, "1e-4", Used),
                    WARMUP_TYPE,
                    LAST,
                ]
            }
        }
        "OneCycle" => {
            const {
                &[
                    key("cycle_min_lr", FromZero, "null", Used),
                    key("cycle_max_lr", FromZero, "null", Used),
                    key("decay_lr_rate", FromZero, "0", Used),
                    key("cycle_first_step_size", Positive, "2000", Used),
                    key("cycle_second_step_size", Positive, "null", Used),
                    key("cycle_first_stair_count", Count, "0", Used),
                    key("cycle_second_stair_count", Count, "null", Used),
                    key("decay_step_size", Count, "0", Used),
                    key("cycle_momentum", Bool, "true", NoEffect(BETA)),
                    key("cycle_min_mom", FromZero, "0.8", NoEffect(BETA)),
                    key("cycle_max_mom", FromZero, "0.9", NoEffect(BETA)),
                    key("decay_mom_rate", FromZero, "0", NoEffect(BETA)),
                    LAST,
                ]
            }
        }
        _ => {
            const {
                &[
                    key("lr_range_test_min_lr", FromZero, "1e-3", Used),
                    key("lr_range_test_step_size", Positive, "2000", Used),
                    key("lr_range_test_step_rate", FromZero, "1", Used),
                    key("lr_range_test_staircase", Bool, "false", Used),
                    LAST,
                ]
            }
        }
    }
}
