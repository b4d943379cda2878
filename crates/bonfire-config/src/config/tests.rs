use bonfire_plan::WorldSize;

use super::*;
use crate::{OffloadTo, Precision};

fn error_of<T: std::fmt::Debug>(result: Result<T, ConfigErrors>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn later_layers_win_and_every_value_knows_where_it_is_from() {
    let file = "steps = 100\n[optimizer]\nlr = 0.1\nkind = \"sgd\"\nmomentum = 0.9\n";
    let environment = [
        ("BONFIRE__OPTIMIZER__LR".to_owned(), "0.2".to_owned()),
        ("BONFIRE__STEPS".to_owned(), "200".to_owned()),
        ("BONFIRE_DEVICE".to_owned(), "cpu".to_owned()),
    ];
    let config = Config::default()
        .with_file(file, Format::Toml)
        .and_then(|config| config.with_environment(environment))
        .and_then(|config| config.with_words(["steps=300", "placement=zero1@2"]))
        .unwrap();
    assert_eq!(config.steps, Some(300));
    assert_eq!(config.optimizer.lr, 0.2);
    assert_eq!(config.optimizer.momentum, Some(0.9));
    assert_eq!(config.placement.to_string(), "zero1@2");
    let source = |key| config.source(key);
    assert_eq!(source("steps"), Source::CommandLine);
    assert_eq!(source("optimizer.lr"), Source::Environment);
    assert_eq!(source("optimizer.kind"), Source::File);
    assert_eq!(source("epochs"), Source::Default);
    let resolved = config.resolved();
    let rate = resolved.iter().find(|value| value.path == "optimizer.lr");
    assert_eq!(rate.unwrap().value, "0.2");
}

#[test]
fn a_programs_own_defaults_are_below_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("train.toml");
    std::fs::write(&file, "steps = 100\noptimizer.no_decay = [\"bias\"]").unwrap();
    let mut own = Config::default();
    (own.steps, own.optimizer.lr) = (Some(600), 0.5);
    let config = own.load_over(Some(&file), ["seed=3"]).unwrap();
    assert_eq!((config.steps, config.optimizer.lr, config.seed), (Some(100), 0.5, 3));
    assert_eq!(config.optimizer.no_decay, ["bias"]);
    assert_eq!(config.source("optimizer.lr"), Source::Default);
}

#[test]
fn json_and_toml_say_the_same() {
    let json = r#"{ "seed": 3, "batch": { "micro": 4 }, "checkpoints": { "folder": "a" } }"#;
    let toml = "seed = 3\nbatch.micro = 4\n[checkpoints]\nfolder = \"a\"";
    let json = Config::default().with_file(json, Format::Json).unwrap();
    assert_eq!(json, Config::default().with_file(toml, Format::Toml).unwrap());
    assert_eq!(json.checkpoints.folder, Some("a".into()));
}

#[test]
fn everything_wrong_is_reported_at_once() {
    let file = r#"{ "sed": 1, "optimizer": { "lrr": 1, "lr": "fast" }, "epochs": 1, "epochs": 2,
        "precision": { "compute": "fp16" }, "data": { "workers": -1 } }"#;
    let error = error_of(Config::default().with_file(file, Format::Json));
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(
        lines,
        [
            "sed: there is no such key; seed is the nearest",
            "optimizer.lrr: there is no such key; optimizer.lr is the nearest",
            "optimizer.lr: \"fast\" is not a number",
            "epochs: the key is there twice; keep one",
            "precision.compute: \"fp16\" is not one of f32, bf16, f16; f16 is the nearest",
            "data.workers: -1 is not a whole number from 0",
        ]
    );
}

#[test]
fn numbers_out_of_range_are_refused() {
    for (word, part) in [
        ("optimizer.lr=-1", "a number from 0"),
        ("clip.norm=0", "a number above 0"),
        ("report.peak_flops=0", "a number above 0"),
        ("steps=0", "a whole number from 1"),
        ("gradients.route=wire", "one of auto, host, device, nccl"),
        ("data.workers=0", "a whole number from 1 to 1024"),
        ("data.workers=20000", "a whole number from 1 to 1024"),
        ("seed=18446744073709551616", "seed: "),
        ("diloco.fragments=0", "a whole number from 1"),
        ("evaluation.every=0", "a whole number from 1"),
        ("optimizer.betas=[0.9, 1.0]", "below 1"),
        ("optimizer.momentum=1", "below 1"),
        ("placement=zero4", "unknown placement `zero4`; choose replicated, zero1"),
        ("lr=1", "optimizer.lr is the nearest"),
        ("steps", "KEY=VALUE"),
        ("clip.norm=nan", "is not a number"),
        ("clip.norm=inf", "is not a number"),
    ] {
        let error = error_of(Config::default().with_words([word]));
        assert!(error.contains(part), "{word}: {error}");
    }
    let both = error_of(Config::default().with_words(["clip.norm=1", "clip.value=1"]));
    assert!(both.contains("keep one"), "{both}");
}

#[test]
fn whole_numbers_keep_all_their_digits() {
    for seed in [(1 << 53) - 1, 1 << 53, (1 << 53) + 1, i64::MAX as u64, u64::MAX] {
        let config = Config::default();
        let json = config.clone().with_file(&format!("{{ \"seed\": {seed} }}"), Format::Json);
        assert_eq!(json.unwrap().seed, seed);
        if i64::try_from(seed).is_ok() {
            let toml = config.clone().with_file(&format!("seed = {seed}"), Format::Toml);
            assert_eq!(toml.unwrap().seed, seed);
        }
        assert_eq!(config.with_words([format!("seed={seed}")]).unwrap().seed, seed);
    }
}

#[test]
fn a_text_that_looks_like_another_value_is_a_text() {
    let words = [
        "checkpoints.folder=2024",
        "report.title=1.50",
        "report.folder=true",
        "offload.optimizer=1e5",
        "clip.norm=1e5",
    ];
    let config = Config::default().with_words(words).unwrap();
    assert_eq!(config.checkpoints.folder, Some("2024".into()));
    assert_eq!(config.report.title, "1.50");
    assert_eq!(config.report.folder, Some("true".into()));
    assert_eq!(config.offload.optimizer, OffloadTo::Files("1e5".into()));
    assert_eq!(config.clip.norm, Some(1e5));
    let error = error_of(Config::default().with_words(["seed=1.5"]));
    assert_eq!(error, "seed: 1.5 is not a whole number from 0");
    let error = error_of(Config::default().with_file("clip.norm = nan", Format::Toml));
    assert!(error.contains("clip.norm"), "{error}");
}

fn of_deepspeed(text: &str) -> Config {
    let file = DeepSpeedFile::parse(text).unwrap();
    let file = file.resolve(&Program::default()).unwrap();
    Config::default().with_deepspeed(&file).unwrap()
}

#[test]
fn a_word_for_the_rate_changes_the_rates_of_a_deepspeed_scheduler() {
    for (scheduler, highest) in [
        (r#""WarmupLR", "params": { "warmup_min_lr": 1e-4, "warmup_num_steps": 5 }"#, 1e-3),
        (r#""WarmupDecayLR", "params": { "total_num_steps": 20, "warmup_max_lr": 0.01 }"#, 0.01),
        (r#""WarmupCosineLR", "params": { "total_num_steps": 20, "warmup_num_steps": 5 }"#, 1e-3),
        (r#""OneCycle", "params": { "cycle_min_lr": 0.1, "cycle_max_lr": 0.2 }"#, 0.2),
        (r#""LRRangeTest", "params": { "lr_range_test_min_lr": 0.01 }"#, 0.01),
    ] {
        let file = of_deepspeed(&format!(
            r#"{{ "optimizer": {{ "type": "SGD", "params": {{ "lr": 0.001 }} }}, "scheduler": {{ "type": {scheduler} }} }}"#
        ));
        assert_eq!(file.optimizer.lr, highest, "{scheduler}");
        let rate = |config: &Config, step| config.rates(0)(step);
        let word = format!("optimizer.lr={}", 4.0 * highest);
        let changed = file.clone().with_words([&word[..]]).unwrap();
        for step in 0..40 {
            let (before, after) = (rate(&file, step), rate(&changed, step));
            assert!((after - 4.0 * before).abs() <= 1e-12, "{scheduler}: {before} {after}");
        }
        let environment = [("BONFIRE__SCHEDULE__DECAY".to_owned(), "cosine".to_owned())];
        let own = file.with_environment(environment).unwrap();
        assert_eq!(own.deepspeed_schedule, None, "{scheduler}");
        assert!(own.notes.iter().any(|note| note.path == "scheduler"));
    }
    let zero = r#"{ "scheduler": { "type": "WarmupLR", "params": { "warmup_max_lr": 0 } } }"#;
    let error = error_of(of_deepspeed(zero).with_words(["optimizer.lr=1"]));
    assert!(error.contains("rates of the file's scheduler are 0"), "{error}");
}

#[test]
fn numbers_out_of_range_of_a_deepspeed_file_are_refused() {
    let file = r#"{ "fp16": { "enabled": true, "initial_scale_power": 5000 } }"#;
    let file = DeepSpeedFile::parse(file).unwrap().resolve(&Program::default());
    let error = error_of(Config::default().with_deepspeed(&file.unwrap()));
    assert!(error.contains("precision.initial_scale: inf"), "{error}");
}

#[test]
fn muons_of_a_deepspeed_file_are_as_long_as_deepspeeds() {
    let config = of_deepspeed(r#"{ "optimizer": { "type": "Muon", "params": { "lr": 0.1 } } }"#);
    assert_eq!(config.optimizer.muon_scale, MuonScale::Original);
    assert_eq!(Config::default().optimizer.muon_scale, MuonScale::AdamW);
}

#[test]
fn bf16_of_a_deepspeed_file_skips_overflows_unless_it_says_otherwise() {
    let skips = |text: &str| of_deepspeed(text).precision.skip_overflow;
    assert!(skips(r#"{ "bf16": { "enabled": true } }"#));
    assert!(!skips(r#"{ "bf16": { "enabled": true, "check_grad_overflow": false } }"#));
    assert!(!skips("{}"));
}

#[test]
fn batches_follow_from_one_another() {
    let config = Config::default().with_words(["batch.total=32", "batch.micro=4"]);
    assert_eq!(config.unwrap().batches(2).unwrap().accumulation, 4);
    let error = Config::default().batches(2).unwrap_err().to_string();
    assert_eq!(error, "batch.micro is missing: give it, or batch.total");
}

#[test]
fn a_deepspeed_file_is_found_out_and_changed_by_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ds.json");
    std::fs::write(
        &path,
        r#"{
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": { "type": "Adam", "params": { "lr": 0.001, "betas": [0.8, 0.999] } },
            "scheduler": { "type": "WarmupLR", "params": { "warmup_num_steps": 10 } },
            "fp16": { "enabled": true, "initial_scale_power": 8 },
            "zero_optimization": { "stage": 3, "offload_optimizer": { "device": "cpu" },
                                   "offload_param": { "device": "nvme", "nvme_path": "/disk" } }
        }"#,
    )
    .unwrap();
    let config = Config::load(Some(&path), ["optimizer.lr=0.5"]).unwrap();
    assert_eq!(config.placement, Placement::zero3());
    assert_eq!(config.optimizer.kind, OptimizerKind::AdamW);
    assert_eq!(config.optimizer.betas, Some((0.8, 0.999)));
    assert_eq!(config.optimizer.lr, 0.5);
    assert_eq!(config.rates(0)(1000), 0.5);
    assert_eq!(config.precision.compute, Precision::F16);
    assert_eq!(config.precision.initial_scale, 256.0);
    assert_eq!(config.offload.optimizer, OffloadTo::Memory);
    assert_eq!(config.offload.parameters, OffloadTo::Files("/disk".into()));
    assert_eq!(config.clip.norm, Some(1.0));
    assert!(config.notes.iter().any(|note| note.path == "gradient_clipping"));
    assert_eq!(config.source("placement"), Source::File);
    assert_eq!(config.source("optimizer.lr"), Source::CommandLine);
    // Exact to the last digit, and a number all the same.
    std::fs::write(&path, r#"{ "train_batch_size": 8, "gradient_clipping": 9007199254740993 }"#)
        .unwrap();
    let config = Config::load(Some(&path), ["batch.micro=8"]).unwrap();
    assert_eq!(config.clip.norm, Some(9_007_199_254_740_992.0));
}

#[test]
fn pipeline_and_tensor_parallel_of_a_deepspeed_file_make_the_mesh() {
    let mesh = |text: &str| of_deepspeed(text).mesh.to_string();
    let file = r#"{ "pipeline": { "stages": 2 }, "tensor_parallel": { "autotp_size": 4, "tp": { "tp_size": 4 } } }"#;
    assert_eq!(mesh(file), "pp=2,dp_shard=-1,tp=4");
    assert_eq!(of_deepspeed(file).source("mesh"), Source::File);
    let whole = r#"{ "pipeline": { "stages": 1 }, "tensor_parallel": { "autotp_size": 0 } }"#;
    assert_eq!(mesh(whole), "dp_shard=-1");
    // The program knows the number, or leaves it to `mesh`.
    let auto = DeepSpeedFile::parse(r#"{ "pipeline": { "stages": "auto" } }"#).unwrap();
    let of = |program: &Program| Config::default().with_deepspeed(&auto.resolve(program).unwrap());
    assert_eq!(of(&Program::default()).unwrap().mesh.to_string(), "dp_shard=-1");
    let program = Program { pipeline_stages: Some(3), ..Program::default() };
    assert_eq!(of(&program).unwrap().mesh.to_string(), "pp=3,dp_shard=-1");
    let other = r#"{ "tensor_parallel": { "autotp_size": 4, "tp": { "tp_size": 2 } } }"#;
    let other = DeepSpeedFile::parse(other).unwrap();
    assert_eq!(
        error_of(other.resolve(&Program::default())),
        "tensor_parallel.tp.tp_size: 2 is refused: tensor_parallel.autotp_size is 4; give the number there"
    );
}

/// What a configuration of words is refused for on 8 ranks, or on any number.
fn refusal(words: &[&str], ranks: Option<u32>) -> String {
    let config = Config::default().with_words(words).unwrap();
    error_of(match ranks {
        Some(ranks) => config.grid(WorldSize::new(ranks).unwrap()).map(drop),
        None => config.check(None),
    })
}

#[test]
fn what_a_trainer_would_refuse_at_its_start_is_found_in_the_configuration() {
    let workers = "diloco.local_steps=10";
    let (sgd, muon) = ("optimizer.kind=sgd", "optimizer.kind=muon");
    for (words, says) in [
        (&[workers, "checkpoints.folder=a"][..], "leave checkpoints.folder out"),
        (&[workers, "placement=zero3"], "choose placement zero1 or zero2"),
        (&[workers, "offload.parameters=memory"], "use offload.optimizer"),
        (&[workers, "precision.compute=f16"], "falls behind"),
        (&["placement=zero2", "gradients.wire=f16"], "gradients.wire: f16 is refused: "),
        (&["diloco.fragments=2"], "diloco.fragments: 2 is refused: set diloco.local_steps"),
        (&["diloco.outer_gradients=int8"], "diloco.outer_gradients: int8 is refused: set "),
        (&["checkpoints.folder="], "checkpoints.folder:  is refused: name a folder"),
        (&["offload.optimizer=a", "offload.parameters=b"], "choose one folder"),
        (&[sgd, "optimizer.nesterov=true"], "nesterov: true is refused: set optimizer.momentum "),
        (&[muon, "placement=zero1"], "placement: zero1 is refused: for lamb and muon take"),
        (&["optimizer.kind=lamb", "placement=zero3@4"], "take zero1-whole"),
        (&[muon, "offload.optimizer=memory"], "offload.optimizer: memory is refused: take adamw"),
        (&[muon, "offload.parameters=a"], "offload.parameters: a is refused: take adamw"),
    ] {
        for ranks in [None, Some(8)] {
            let error = refusal(words, ranks);
            assert!(error.contains(says), "{words:?} on {ranks:?}: {error}");
        }
    }
    for (words, says) in [
        (&["placement=zero3@3"][..], "placement: zero3@3 is refused: "),
        (&["mesh=dp=3"], "mesh: dp_shard=3 is refused: "),
        (&["mesh=pp=2,cp=2,dp=2"], "leave pp or cp out"),
        (&["mesh=pp=2,dp=4", "placement=zero3"], "take zero1 or zero2"),
        (&["mesh=pp=2,dp=4", "precision.compute=bf16"], "cast in the stages"),
        (&["mesh=pp=2,dp=4", "offload.parameters=memory"], "use offload.optimizer"),
        (&["placement=zero1", "gradients.route=nccl"], "take auto or host"),
        (&[workers], "set mesh=dp_replicate=-1"),
        (&[workers, "mesh=cp=8"], "leave pp and cp out"),
    ] {
        Config::default().with_words(words).unwrap().check(None).unwrap();
        let error = refusal(words, Some(8));
        assert!(error.contains(says), "{words:?}: {error}");
    }
    for words in [
        &["placement=zero3@4"][..],
        &["placement=zero3@16"],
        &["offload.optimizer=a", "offload.parameters=a"],
        &[workers, "mesh=dp_replicate=2,dp_shard=4", "placement=zero1"],
        &["mesh=dp_replicate=2,dp_shard=4", "placement=zero3", "checkpoints.folder=a"],
        &["gradients.route=nccl"],
        &[sgd, "optimizer.nesterov=true", "optimizer.momentum=0.9"],
        &["optimizer.nesterov=true"],
        &[muon, "placement=zero2-whole"],
        // One behind the other, as the layers of a file and a command line are.
        &["diloco.fragments=2", "diloco.local_steps=10", "mesh=dp_replicate=8"],
    ] {
        let config = Config::default().with_words(words).unwrap();
        config.grid(WorldSize::new(8).unwrap()).unwrap();
    }
}

#[test]
fn a_pipeline_that_its_schedule_does_not_have_is_refused() {
    let schedule = |words: &[&str]| {
        let config = Config::default().with_words(words).unwrap();
        let batches = config.batches(1).unwrap();
        config.stages(WorldSize::new(4).unwrap(), &batches)
    };
    let words = ["batch.micro=1", "batch.accumulation=8", "pipeline.schedule=interleaved"];
    assert_eq!(schedule(&words).unwrap().stages(), 8);
    let error = error_of(schedule(&["batch.micro=1", "pipeline.stages_per_rank=2"]));
    assert!(error.starts_with("pipeline.schedule: 1f1b is refused: "), "{error}");
}

#[test]
fn a_pipeline_has_a_schedule_of_the_planner() {
    let with = |words: [&str; 2]| Config::default().with_words(words);
    let config = with(["pipeline.schedule=zb_h1", "pipeline.stages_per_rank=1"]).unwrap();
    assert_eq!(config.pipeline.schedule.name(), "zb_h1");
    assert_eq!(config.pipeline.stages_per_rank, Some(1));
    let error = error_of(with(["pipeline.schedule=zb_h2", "pipeline.stages_per_rank=0"]));
    assert!(error.contains("zb_h1 is the nearest"), "{error}");
}

#[test]
fn every_optimizer_has_one_name() {
    for kind in OptimizerKind::ALL {
        let config = Config::default().with_words([format!("optimizer.kind={kind}")]).unwrap();
        assert_eq!(config.optimizer.kind, kind);
    }
}
