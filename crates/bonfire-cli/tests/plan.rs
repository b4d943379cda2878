//! `bonfire plan`, as a user runs it.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::path::Path;
use std::process::Command;

use bonfire_testkit::{Job, JobEnd};

/// A file of which only the description is there: nobody may look for more.
fn describe(path: &Path, description: &str) {
    let mut bytes = (description.len() as u64).to_le_bytes().to_vec();
    bytes.extend(description.as_bytes());
    fs::write(path, bytes).unwrap();
}

fn matrices(names: &[&str]) -> String {
    let tensor = |name: &&str| {
        format!(r#""{name}": {{"dtype":"F32","shape":[4096,4096],"data_offsets":[0,67108864]}}"#)
    };
    let tensors: Vec<_> = names.iter().map(tensor).collect();
    format!(r#"{{"__metadata__":{{"format":"pt"}},{}}}"#, tensors.join(","))
}

fn plan(path: &Path, arguments: &[&str]) -> JobEnd {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bonfire"));
    Job::start(command.arg("plan").arg(path).args(arguments)).end()
}

fn line<'a>(end: &'a JobEnd, start: &str) -> &'a str {
    let found = end.stdout.iter().find(|line| line.starts_with(start));
    found.unwrap_or_else(|| panic!("no {start} in {:?} {:?}", end.stdout, end.stderr))
}

#[test]
fn bytes_that_cannot_be_counted_do_not_become_few() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    describe(&file, &matrices(&["a"]));
    let end = plan(&file, &["--activations", "18446744073709551615", "--memory", "1T"]);
    let end = end.with_code(1);
    assert!(line(&end, "zero3").ends_with("no"), "{:?}", end.stdout);
}

#[test]
fn a_file_is_planned_in_all_placements() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    describe(&file, &matrices(&["a", "b"]));
    let given = ["--ranks", "4", "--memory", "430M", "--activations", "10MiB"];
    for path in [file.as_path(), folder.path()] {
        let end = plan(path, &given).with_code(0);
        // Parameters, and gradients in their buckets, of 128 MiB, moments of 256, and a copy of a gradient.
        assert!(line(&end, "33.6 million").contains("4 ranks"));
        assert!(line(&end, "replicated").contains("582 MiB"), "{:?}", end.stdout);
        assert!(line(&end, "replicated").ends_with("no"));
        assert!(line(&end, "zero3").ends_with("yes"), "{:?}", end.stdout);
    }
    let end = plan(&file, &["--ranks", "4", "--memory", "1M"]);
    assert!(!end.status.success(), "nothing fits");
    let end = plan(&file, &["optimizer.kind=lion", "placement=zero2@2"]);
    assert!(line(&end, "replicated").contains("128 MiB"));
    line(&end, "zero2@2");
    let end = plan(&file, &["mesh=dp=4,tp=2"]);
    assert!(!end.status.success());
    let error = end.stderr.join("\n");
    assert!(error.contains("mesh=dp_shard=4,tp=2: the shapes"), "{error}");
}

#[test]
fn an_optimizer_is_what_it_keeps() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    describe(&file, &matrices(&["a", "b"]));
    let table = |arguments: &[&str]| plan(&file, arguments).with_code(0).stdout;
    let of = |optimizer: &str| table(&["--optimizer", optimizer]);
    let configured = |kind: &str| table(&[&format!("optimizer.kind={kind}")]);
    for (optimizer, kind) in [
        ("adamw", "adam"),
        ("lamb", "muon"),
        ("lion", "lion"),
        ("sgd", "sgd"),
        ("momentum", "lion"),
    ] {
        assert_eq!(of(optimizer), configured(kind), "{optimizer}");
    }
    assert_ne!(of("adamw"), of("lion"));
    assert_ne!(of("lion"), of("sgd"));
    let end = plan(&file, &["--optimizer", "muon"]);
    assert!(end.stderr.join("\n").contains("[possible values: adamw, adam"), "{:?}", end.stderr);
}

#[test]
fn an_index_is_all_its_files() {
    let folder = tempfile::tempdir().unwrap();
    for (name, tensors) in [("1", ["a", "b"]), ("2", ["c", "d"])] {
        describe(&folder.path().join(name), &matrices(&tensors));
    }
    let index = r#"{"metadata":{},"weight_map":{"a":"1","b":"1","c":"2","d":"2"}}"#;
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    assert!(line(&plan(folder.path(), &[]), "67.1 million").contains("8 ranks"));
}

#[test]
fn what_is_no_model_is_reported_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("words.safetensors");
    fs::write(&file, "not a description of tensors").unwrap();
    describe(&folder.path().join("odd"), r#"{"a":{"dtype":"C64","shape":[2]}}"#);
    let side = 1_u64 << 62;
    let large = format!(r#"{{"w":{{"dtype":"F32","shape":[{side},{side}]}}}}"#);
    describe(&folder.path().join("large"), &large);
    for (path, expected) in [
        (file.as_path(), "begins with \"not a description of"),
        (&folder.path().join("none"), "No such file"),
        (folder.path(), "model.safetensors"),
        (&folder.path().join("odd"), "C64"),
        (&folder.path().join("large"), "tensor w of shape"),
    ] {
        let end = plan(path, &[]);
        assert!(!end.status.success());
        let error = end.stderr.join("\n");
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let end = plan(&file, &["--memory", "much"]);
    assert!(end.stderr.join("\n").contains("80GiB"), "{:?}", end.stderr);
}
