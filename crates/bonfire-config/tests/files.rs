//! Files that people have, and what they mean; and files with something wrong in them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bonfire_config::deepspeed::{
    DeepSpeedConfig, DeepSpeedFile, LossScale, Program, Rule, Schedule, WarmupShape,
};
use bonfire_config::{ConfigError, OffloadTo, Precision, Source};
use chacha20::ChaCha8Rng;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};

/// The file of the tutorials.
const TUTORIAL: &str = r#"{
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "optimizer": {
        "type": "Adam",
        "params": { "lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7 }
    },
    "scheduler": {
        "type": "WarmupLR",
        "params": { "warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000 }
    },
    "activation_checkpointing": {
        "partition_activations": true,
        "cpu_checkpointing": true,
        "contiguous_memory_optimization": false,
        "number_checkpoints": null,
        "synchronize_checkpoint_boundary": false,
        "profile": true
    },
    "fp16": {
        "enabled": true,
        "auto_cast": false,
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "consecutive_hysteresis": false,
        "min_loss_scale": 1
    },
    "zero_optimization": {
        "stage": 3,
        "offload_param": { "device": "cpu", "pin_memory": true },
        "offload_optimizer": { "device": "cpu", "pin_memory": true },
        "contiguous_gradients": true,
        "overlap_comm": true
    }
}"#;

/// Everything that Hugging Face leaves to the program.
const ALL_AUTO: &str = r#"{
    "fp16": { "enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16,
              "hysteresis": 2, "min_loss_scale": 1 },
    "bf16": { "enabled": "auto" },
    "optimizer": {
        "type": "AdamW",
        "params": { "lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto" }
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": { "total_num_steps": "auto", "warmup_min_lr": "auto", "warmup_max_lr": "auto",
                    "warmup_num_steps": "auto" }
    },
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": { "device": "nvme", "nvme_path": "/local_nvme", "pin_memory": true,
                               "buffer_count": 4, "fast_init": false },
        "overlap_comm": true,
        "contiguous_gradients": true,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": true
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": false
}"#;

fn resolved(text: &str) -> DeepSpeedConfig {
    let file = DeepSpeedFile::parse(text).unwrap();
    file.resolve(&Program::default()).unwrap()
}

fn errors(text: &str) -> Vec<ConfigError> {
    let wrong = DeepSpeedFile::parse(text).and_then(|file| file.resolve(&Program::default()));
    wrong.unwrap_err().0
}

#[test]
fn the_file_of_the_tutorials_means_what_it_says() {
    let config = resolved(TUTORIAL);
    let optimizer = config.optimizer.unwrap();
    assert_eq!((optimizer.lr, optimizer.weight_decay), (1e-3, 3e-7));
    let adam = Rule::Adam { betas: (0.8, 0.999), eps: 1e-8, decoupled: true };
    assert_eq!(optimizer.rule, adam);
    let Some(Schedule::Warmup { min, max, warmup }) = config.schedule else {
        panic!("{:?}", config.schedule);
    };
    assert_eq!((min, max, warmup.steps, warmup.shape), (0.0, 1e-3, 1000, WarmupShape::Log));
    let scale = LossScale::Dynamic {
        initial: 65536.0,
        window: 1000,
        hysteresis: 2,
        consecutive_hysteresis: false,
        min: 1.0,
    };
    assert_eq!((config.precision, config.loss_scale), (Precision::F16, Some(scale)));
    assert_eq!((config.zero.stage, config.zero.reduce_bucket_size), (3, 500_000_000));
    assert_eq!(config.zero.offload_param, OffloadTo::Memory);
    assert_eq!(config.zero.offload_optimizer, OffloadTo::Memory);
    assert!(config.cpu_checkpointing);
    assert_eq!(config.gradient_clipping, 1.0);
    assert_eq!(config.batch.resolve(2).unwrap().train, 2);
    let noted = |path: &str| config.notes.iter().filter(|note| note.path == path).count();
    assert_eq!(noted("zero_optimization.overlap_comm"), 1);
    assert_eq!(noted("zero_optimization.stage"), 0);
    let source =
        |path: &str| config.resolved.iter().find(|value| value.path == path).unwrap().source;
    assert_eq!(source("fp16.hysteresis"), Source::File);
    assert_eq!(source("gradient_clipping"), Source::Default);
}

#[test]
fn what_is_auto_comes_from_the_program() {
    let file = DeepSpeedFile::parse(ALL_AUTO).unwrap();
    let mut program = Program::default();
    let unresolved = file.resolve(&program).unwrap_err();
    let paths: Vec<&str> = unresolved.0.iter().filter_map(ConfigError::path).collect();
    // The clipping and the first rate of a warm-up have a value for it, the total follows, and two sizes of stage 3
    // change nothing.
    assert_eq!(paths.len(), 12, "{paths:?}");
    assert!(unresolved.to_string().contains(
        "zero_optimization.reduce_bucket_size: \"auto\" needs the hidden size; write a value into the file"
    ));
    program.micro_batch = Some(4);
    program.accumulation = Some(2);
    program.learning_rate = Some(5e-5);
    program.betas = Some((0.9, 0.999));
    program.eps = Some(1e-8);
    program.weight_decay = Some(0.0);
    program.warmup_steps = Some(10);
    program.total_steps = Some(100);
    program.hidden_size = Some(1024);
    program.precision = Some(Precision::Bf16);
    let config = file.resolve(&program).unwrap();
    assert_eq!(config.precision, Precision::Bf16);
    assert_eq!(config.zero.reduce_bucket_size, 1024 * 1024);
    assert_eq!(config.zero.offload_optimizer, OffloadTo::Files("/local_nvme".into()));
    assert_eq!(config.batch.resolve(8).unwrap().train, 64);
    assert_eq!(config.schedule.unwrap().rate(11), 5e-5);
    let source =
        |path: &str| config.resolved.iter().find(|value| value.path == path).unwrap().source;
    assert_eq!(source("optimizer.params.lr"), Source::Program);
}

#[test]
fn all_that_the_program_has_otherwise_is_reported_at_once() {
    let file = DeepSpeedFile::parse(TUTORIAL).unwrap();
    let mut program = Program::default();
    program.learning_rate = Some(1e-4);
    program.micro_batch = Some(2);
    program.eps = Some(1e-8);
    let error = file.resolve(&program).unwrap_err();
    let paths: Vec<&str> = error.0.iter().filter_map(ConfigError::path).collect();
    assert_eq!(
        paths,
        ["train_micro_batch_size_per_gpu", "optimizer.params.lr", "scheduler.params.warmup_max_lr"]
    );
}

#[test]
fn what_is_wrong_is_reported_with_its_path() {
    let assert_error = |text: &str, expected: &str| {
        let lines: Vec<String> = errors(text).iter().map(ToString::to_string).collect();
        assert_eq!(lines, [expected]);
    };
    assert_error(
        r#"{ "fp16": { "enabled": "yes" } }"#,
        "fp16.enabled: \"yes\" is not true or false, nor \"auto\"",
    );
    assert_error(
        r#"{ "zero_optimization": { "stage": 3, "offload_param": { "device": "cpuu" } } }"#,
        "zero_optimization.offload_param.device: \"cpuu\" is not one of none, cpu, nvme, nor \"auto\"; cpu is the nearest",
    );
    assert_error(
        r#"{ "optimizer": { "type": "OneBitAdam", "params": { "lr": 1 } } }"#,
        "optimizer.type: \"OneBitAdam\" is refused: of DeepSpeed's, Bonfire reads Adam, AdamW, SGD, Lion and Muon",
    );
    assert_error(
        r#"{ "optimizer": { "type": "SGD", "params": { "nesterow": true } } }"#,
        "optimizer.params.nesterow: there is no such key; optimizer.params.nesterov is the nearest",
    );
    assert_error(
        r#"{ "steps_per_print": 10, "steps_per_print": 20 }"#,
        "steps_per_print: the key is there twice; keep one",
    );
    assert_error(
        r#"{ "bf16": { "enabled": true }, "bfloat16": { "enabled": true } }"#,
        "bf16: the key is there twice; keep one",
    );
    assert_error(
        r#"{ "zero_optimization": { "stage": 1, "offload_param": { "device": "cpu" } } }"#,
        "zero_optimization.offload_param.device: cpu is refused: it needs stage 3, and the stage is 1",
    );
    assert_error(
        r#"{ "zero_optimization": { "stage": 4 } }"#,
        "zero_optimization.stage: 4 is not 0, 1, 2 or 3, nor \"auto\"",
    );
    assert_error(
        r#"{ "fp16": { "enabled": true }, "bf16": { "enabled": true } }"#,
        "bf16.enabled: true is refused: fp16.enabled is true, too; choose one",
    );
    assert_error(
        r#"{ "scheduler": { "type": "WarmupDecayLR" } }"#,
        "scheduler.params.total_num_steps is missing: the scheduler has no default for it",
    );
    assert_error("[1]", "the configuration cannot be parsed: it is [1] rather than an object");
    assert_error(
        r#"{ "zero_optimization": true }"#,
        "zero_optimization: true is not an object; write { \"stage\": 1 }, or 0 for false",
    );
    assert_error(
        r#"{ "gradient_clipping": -1 }"#,
        "gradient_clipping: -1 is not a number from 0, nor \"auto\"",
    );
    assert_error(
        r#"{ "optimizer": { "type": "Muon" } }"#,
        "optimizer.params.muon_lr: 0.02 beside 0.0003 of adam_lr is refused: all parameters have one rate here; write \
         one lr, without the two",
    );
    assert_error(
        r#"{ "optimizer": { "type": "AdamW" }, "scheduler": { "type": "OneCycle",
             "params": { "cycle_min_lr": 0, "cycle_max_lr": 1 } } }"#,
        "scheduler.params.cycle_momentum: true is refused: betas stay as they are here; write false, and only the rate \
         goes up and down",
    );
    // A false that is not the default asks for something.
    assert_error(
        r#"{ "optimizer": { "type": "Adam", "params": { "bias_correction": false } } }"#,
        "optimizer.params.bias_correction: false is refused: Adam corrects its bias",
    );
    let both = errors(r#"{ "trian_batch_size": 4, "elasticity": { "enabled": true } }"#);
    assert_eq!(both.len(), 2);
    let lamb = errors(r#"{ "optimizer": { "type": "Lamb", "params": { "max_coeff": 3 } } }"#);
    assert!(lamb[0].to_string().contains("optimizer.kind"), "{lamb:?}");
}

#[test]
fn all_mistakes_of_a_file_are_reported_together() {
    let text = r#"{
        "gradient_clipping": -1,
        "optimizer": { "type": "AdamX" },
        "fp16": { "enabled": true }, "bf16": { "enabled": true },
        "scheduler": { "type": "WarmupDecayLR" },
        "zero_optimization": { "stage": 4, "stag": 2, "offload_param": { "device": "cpu" } }
    }"#;
    let found = errors(text);
    let paths: Vec<&str> = found.iter().filter_map(ConfigError::path).collect();
    // That offload_param needs stage 3 is not said where the stage is wrong.
    assert_eq!(
        paths,
        [
            "gradient_clipping",
            "optimizer.type",
            "zero_optimization.stage",
            "zero_optimization.stag",
            "scheduler.params.total_num_steps",
            "bf16.enabled",
        ]
    );
}

#[test]
fn files_are_read_as_deepspeed_reads_them() {
    let file = "\u{feff}{ // a comment\n \"zero_optimization\": { \"stage\": 2, }, # another\n}";
    assert_eq!(resolved(file).zero.stage, 2);
    let wrong = errors("{ # one\n \"steps_per_print\" 1 }")[0].to_string();
    assert!(wrong.ends_with("at line 2 column 20"), "{wrong}");
}

#[test]
fn a_stage_and_devices_may_be_auto_as_accelerate_fills_them() {
    let text = r#"{ "zero_optimization": { "stage": "auto", "stage3_gather_16bit_weights_on_model_save": "auto",
        "offload_optimizer": { "device": "auto", "nvme_path": "auto" }, "offload_param": { "device": "auto" } } }"#;
    let file = DeepSpeedFile::parse(text).unwrap();
    let unresolved = file.resolve(&Program::default()).unwrap_err().0;
    let paths: Vec<&str> = unresolved.iter().filter_map(ConfigError::path).collect();
    let at = |name: &str| format!("zero_optimization.{name}");
    assert_eq!(paths, [at("stage"), at("offload_optimizer.device"), at("offload_param.device")]);
    let mut program = Program::default();
    program.zero_stage = Some(3);
    program.offload_optimizer = Some(OffloadTo::Memory);
    program.offload_param = Some(OffloadTo::None);
    let zero = file.resolve(&program).unwrap().zero;
    assert_eq!((zero.stage, zero.offload_param), (3, OffloadTo::None));
    assert_eq!(zero.offload_optimizer, OffloadTo::Memory);
    program.offload_optimizer = Some(OffloadTo::Files("/disk".into()));
    let zero = file.resolve(&program).unwrap().zero;
    assert_eq!(zero.offload_optimizer, OffloadTo::Files("/disk".into()));
    // The file's own value counts, whatever the program would say.
    let file = DeepSpeedFile::parse(r#"{ "zero_optimization": { "stage": 1 } }"#).unwrap();
    assert_eq!(file.resolve(&program).unwrap().zero.stage, 1);
}

#[test]
fn defaults_are_those_of_the_optimizer_that_deepspeed_takes() {
    let optimizer = |text: &str| {
        let file = format!("{{ \"optimizer\": {text} }}");
        resolved(&file).optimizer.unwrap()
    };
    let decay = |text: &str| optimizer(text).weight_decay;
    assert_eq!(decay(r#"{ "type": "AdamW" }"#), 0.0);
    assert_eq!(decay(r#"{ "type": "Adam" }"#), 0.0);
    for torchs in ["AdamW", "Adam"] {
        let params = r#""params": { "torch_adam": true }"#;
        assert_eq!(decay(&format!(r#"{{ "type": "{torchs}", {params} }}"#)), 0.01);
    }
    let params = r#""params": { "torch_adam": true, "adam_w_mode": false }"#;
    assert_eq!(decay(&format!(r#"{{ "type": "Adam", {params} }}"#)), 0.0);
    let muon = optimizer(r#"{ "type": "Muon", "params": { "lr": 0.1 } }"#);
    assert_eq!(muon.lr, 0.1);
    assert_eq!(muon.rule, Rule::Muon { momentum: 0.95, betas: (0.9, 0.95), eps: 1e-10 });
}

#[test]
fn what_is_switched_off_is_not_refused() {
    let config = resolved(
        r#"{ "autotuning": { "enabled": false, "fast": true }, "zero_optimization": { "zero_quantized_weights": false },
             "compression_training": { "weight_quantization": { "shared_parameters": { "enabled": false } } },
             "elasticity": {} }"#,
    );
    assert_eq!(config.zero.stage, 0);
    assert_eq!(config.precision, Precision::F32);
}

#[test]
fn old_names_go_on_and_are_noted() {
    let config = resolved(
        r#"{ "bfloat16": { "enabled": true },
             "zero_optimization": { "stage": 2, "cpu_offload": true, "cpu_offload_use_pin_memory": true } }"#,
    );
    assert_eq!(config.precision, Precision::Bf16);
    assert_eq!(config.zero.offload_optimizer, OffloadTo::Memory);
    let paths: Vec<&str> = config.notes.iter().map(|note| note.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "bfloat16",
            "zero_optimization.cpu_offload",
            "zero_optimization.cpu_offload_use_pin_memory"
        ]
    );
}

/// Paths and places of all names and known texts in a file.
fn words(text: &str) -> Vec<(usize, usize)> {
    let quotes: Vec<usize> = text.match_indices('"').map(|(place, _)| place).collect();
    let words = quotes.chunks_exact(2).map(|pair| (pair[0] + 1, pair[1]));
    let free = ["auto", "/local_nvme"];
    words.filter(|(start, end)| !free.contains(&&text[*start..*end])).collect()
}

/// A word with one letter wrong.
fn mistyped(word: &str, random: &mut impl RngExt) -> String {
    let mut letters: Vec<char> = word.chars().collect();
    let place = random.random_range(0..letters.len());
    match random.random_range(0..4) {
        0 if letters.len() > 3 => drop(letters.remove(place)),
        1 => letters.insert(place, letters[place]),
        2 if place > 0 => letters.swap(place, place - 1),
        _ => letters[place] = random.random_range('a'..='z'),
    }
    letters.into_iter().collect()
}

#[test]
fn mistyped_names_and_texts_are_found_where_they_are() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let (mut tried, mut right) = (0, 0);
    while tried < 200 {
        let text = [TUTORIAL, ALL_AUTO][tried % 2];
        let words = words(text);
        let (start, end) = words[random.random_range(0..words.len())];
        let word = &text[start..end];
        let wrong = mistyped(word, &mut random);
        if wrong.eq_ignore_ascii_case(word) {
            continue;
        }
        tried += 1;
        let file = format!("{}{wrong}{}", &text[..start], &text[end..]);
        let found = DeepSpeedFile::parse(&file).unwrap_err().0;
        let hit = found.iter().find_map(|error| match error {
            ConfigError::UnknownKey { path, nearest } if path.ends_with(&wrong) => Some(nearest),
            ConfigError::Value { found, nearest, .. } if found.contains(&wrong) => Some(nearest),
            _ => None,
        });
        let nearest = hit.unwrap_or_else(|| panic!("{wrong} for {word}: {found:?}"));
        let nearest = nearest.as_deref().unwrap_or_default();
        let is_right = nearest.rsplit('.').next().unwrap().eq_ignore_ascii_case(word);
        if is_right { right += 1 } else { println!("{wrong} for {word}: {nearest}") }
    }
    assert!(right >= 190, "{right} of {tried}");
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[\\[\\]{}\",:0-9a-z. -]{0,60}") {
        let _ = DeepSpeedFile::parse(&text);
    }

    #[test]
    fn no_value_makes_it_panic(path in 0..bonfire_config::deepspeed::KEYS.len(), value in prop::sample::select(vec![
        "null", "true", "-1", "0", "1e300", "0.5", "\"auto\"", "\"x\"", "[]", "[1,2]", "{}", "{\"enabled\":true}",
    ])) {
        let path = bonfire_config::deepspeed::KEYS[path].path;
        let mut file = value.to_owned();
        for name in path.rsplit('.') {
            file = format!("{{\"{name}\":{file}}}");
        }
        if let Ok(file) = DeepSpeedFile::parse(&file) {
            let _ = file.resolve(&Program::default());
        }
    }
}
