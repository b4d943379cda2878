//! `bonfire config check`, as a user runs it.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::process::Command;

use bonfire_testkit::{Job, JobEnd, assert_each_says, command_lines};

fn check(text: &str, arguments: &[&str]) -> JobEnd {
    check_named("ds_config.json", text, arguments)
}

fn check_named(name: &str, text: &str, arguments: &[&str]) -> JobEnd {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bonfire"));
    Job::start(command.args(["config", "check"]).arg(&file).args(arguments)).end()
}

/// What it prints, with one space between words.
fn lines_of(end: &JobEnd) -> Vec<String> {
    let line = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
    end.stdout.iter().map(line).collect()
}

#[test]
fn the_file_of_the_page_is_right() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../book/src/configuration.md");
    let page = fs::read_to_string(page).unwrap();
    let file = page.split("```toml\n").nth(1).unwrap();
    let file = file.split("```").next().unwrap();
    let mut lines = command_lines().into_iter();
    let command = lines.find(|line| line.page.ends_with("configuration.md"));
    let words = command.unwrap().words;
    let [_, "config", "check", name, arguments @ ..] =
        &words.iter().map(String::as_str).collect::<Vec<_>>()[..]
    else {
        panic!("{words:?}")
    };
    let end = check_named(name, file, arguments).with_code(0);
    assert_each_says([end.stdout.join("\n")], &["optimizer.lr"]);
}

#[test]
fn a_file_that_is_right_is_explained() {
    let file =
        r#"{ "train_batch_size": 32, "zero_optimization": { "stage": 2, "overlap_comm": true } }"#;
    let end = check(file, &["--ranks", "4"]).with_code(0);
    let lines = lines_of(&end);
    for line in [
        "train_batch_size 32 file",
        "zero_optimization.stage 2 file",
        "zero_optimization.reduce_bucket_size 500000000 default",
        "a step: 32 samples = 8 on each of 4 ranks x 1 forward passes",
        "zero_optimization.overlap_comm: gradients are always sent while backward runs",
    ] {
        assert!(lines.iter().any(|found| found == line), "{line}: {lines:#?}");
    }
}

#[test]
fn everything_that_is_wrong_is_reported_at_once() {
    let end = check(r#"{ "trian_batch_size": 4, "fp16": { "enabled": 1 } }"#, &[]).with_code(1);
    assert_eq!(end.stderr.len(), 2, "{:?}", end.stderr);
    assert!(end.stderr[0].ends_with("there is no such key; train_batch_size is the nearest"));
    let end = check(r#"{ "train_batch_size": 30 }"#, &["--ranks", "4"]);
    assert!(end.stderr[0].contains("30 samples do not divide by 4"), "{:?}", end.stderr);
}

#[test]
fn samples_are_those_of_ranks_that_have_different_ones() {
    let file = r#"{ "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
        "pipeline": { "stages": 2 }, "tensor_parallel": { "autotp_size": 2 } }"#;
    let end = check(file, &["--ranks", "8"]).with_code(0);
    let step = "a step: 16 samples = 2 on each of 2 ranks x 4 forward passes";
    assert_each_says([end.stdout.join("\n")], &[step]);
    let end = check(file, &["--ranks", "6"]);
    let fault = "mesh: pp=2,dp_shard=-1,tp=2 is refused";
    assert!(end.stderr[0].contains(fault), "{:?}", end.stderr);
}

#[test]
fn what_is_auto_is_listed_for_the_program() {
    let file = r#"{ "train_micro_batch_size_per_gpu": "auto", "bf16": { "enabled": "auto" } }"#;
    let end = check(file, &[]).with_code(0);
    assert_each_says([end.stdout.join("\n")], &["bf16.enabled: the precision"]);
}

#[test]
fn an_auto_is_not_shown_with_a_value_that_the_file_does_not_have() {
    let file = r#"{ "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": "auto",
        "zero_optimization": { "stage": 3, "stage3_prefetch_bucket_size": "auto",
            "offload_optimizer": { "device": "cpu", "nvme_path": "auto" } },
        "optimizer": { "type": "AdamW", "params": { "lr": 0.1 } },
        "scheduler": { "type": "WarmupLR", "params": { "warmup_min_lr": "auto",
            "warmup_max_lr": 0.1, "warmup_num_steps": 5 } } }"#;
    let lines = lines_of(&check(file, &["--ranks", "2"]).with_code(0));
    for key in [
        "train_batch_size",
        "gradient_clipping",
        "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.offload_optimizer.nvme_path",
        "scheduler.params.warmup_min_lr",
    ] {
        let line = format!("{key} auto program");
        assert!(lines.contains(&line), "{line}: {lines:#?}");
    }
    assert!(lines.contains(&"train_micro_batch_size_per_gpu 4 file".to_owned()), "{lines:#?}");
}

#[test]
fn what_a_training_would_refuse_at_its_start_is_wrong() {
    let theirs = r#"{ "train_batch_size": 8, "zero_optimization": { "stage": 2 },
        "communication_data_type": "fp16" }"#;
    let end = check(theirs, &[]).with_code(1);
    assert_each_says([end.stderr.join("\n")], &["gradients.wire: f16 is refused"]);
    let own = "placement = \"zero3@3\"\n[batch]\nmicro = 4\n";
    check_named("train.toml", own, &["--ranks", "9"]).with_code(0);
    let end = check_named("train.toml", own, &["--ranks", "8"]).with_code(1);
    assert_each_says([end.stderr.join("\n")], &["placement: zero3@3 is refused"]);
    let own = "[batch]\nmicro = 4\n[diloco]\nlocal_steps = 5\n[checkpoints]\nfolder = \"a\"\n";
    let end = check_named("train.toml", own, &[]).with_code(1);
    assert_each_says([end.stderr.join("\n")], &["leave checkpoints.folder out"]);
    let own = "[batch]\nmicro = 4\n[pipeline]\nstages_per_rank = 2\n";
    let end = check_named("train.toml", own, &["--ranks", "4", "mesh=pp=4"]).with_code(1);
    assert_each_says([end.stderr.join("\n")], &["pipeline.schedule: 1f1b is refused"]);
}

#[test]
fn a_file_of_bonfires_own_is_explained_with_what_comes_after_it() {
    let file = "steps = 100\n[optimizer]\nlr = 0.1\n[batch]\nmicro = 4\n";
    let words = ["--ranks", "2", "optimizer.lr=0.5", "placement=zero1"];
    let end = check_named("train.toml", file, &words).with_code(0);
    let parts = [
        "steps 100 file",
        "optimizer.lr 0.5 command line",
        "placement \"zero1\" command line",
        "epochs 1 default",
        "a step: 8 samples = 4 on each of 2 ranks x 1 forward passes",
    ];
    assert_each_says([lines_of(&end).join("\n")], &parts);
    let end = check_named("train.toml", file, &["optimizer.lr=abc"]).with_code(1);
    assert!(end.stderr[0].starts_with("command line: optimizer.lr: "), "{:?}", end.stderr);
    let end = check_named("train.toml", file, &["optimizer.lrr=1"]).with_code(1);
    assert!(end.stderr[0].ends_with("optimizer.lr is the nearest"), "{:?}", end.stderr);
}

#[test]
fn a_wrong_variable_is_not_said_to_be_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("train.toml");
    fs::write(&file, "steps = 100\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bonfire"));
    command.args(["config", "check"]).arg(&file).env("BONFIRE__OPTIMIZER__LR", "abc");
    let end = Job::start(&mut command).end().with_code(1);
    assert!(end.stderr[0].starts_with("environment: optimizer.lr: "), "{:?}", end.stderr);
}
