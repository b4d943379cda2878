use std::fs;
use std::num::NonZeroUsize;

use proptest::prelude::*;

use super::*;
use crate::model::Arch;

/// What Distribuuuu's own file for BoTNet-50 says, key by key.
const DISTRIBUUUU: &str = "\
CFG_DEST: config.yaml
CUDNN:
  BENCHMARK: true
  DETERMINISTIC: false
MODEL:
  ARCH: botnet50
  DUMMY_INPUT: false
  NUM_CLASSES: 1000
  PRETRAINED: false
  SYNCBN: false
  WEIGHTS: null
OPTIM:
  BASE_LR: 0.2
  DAMPENING: 0.0
  LR_MULT: 0.1
  LR_POLICY: cos
  MAX_EPOCH: 100
  MIN_LR: 0.0
  MOMENTUM: 0.9
  NESTEROV: true
  STEPS: []
  WARMUP_EPOCHS: 5
  WARMUP_FACTOR: 0.1
  WEIGHT_DECAY: 5.0e-05
OUT_DIR: ./botnet50
RNG_SEED: null
TEST:
  BATCH_SIZE: 200
  DATASET: ./data/ILSVRC/
  IM_SIZE: 256
  PRINT_FREQ: 10
  SPLIT: val
TRAIN:
  AUTO_RESUME: true
  BATCH_SIZE: 32
  DATASET: ./data/ILSVRC/
  IM_SIZE: 224
  LOAD_OPT: true
  PIN_MEMORY: true
  PRINT_FREQ: 30
  SPLIT: train
  TOPK: 5
  WORKERS: 4
";

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn load(text: &str, pairs: &str) -> Result<Config, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("some.yaml");
    fs::write(&path, text).unwrap();
    Config::load(Some(&path), &words(pairs)).map_err(|error| {
        let text = error.to_string();
        assert!(!text.contains('\n'), "more than one line: {text}");
        text.replace(&folder.path().display().to_string(), "")
    })
}

#[track_caller]
fn fails(text: &str, pairs: &str, parts: &[&str]) {
    let error = load(text, pairs).unwrap_err();
    for part in parts {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

#[test]
fn distribuuuus_file_is_read_and_agrees_with_the_defaults() {
    let mut expected = Config::default();
    expected.model.arch = Arch::BotNet50;
    expected.out_dir = "./botnet50".into();
    expected.test.dataset = Some("./data/ILSVRC/".into());
    assert_eq!(load(DISTRIBUUUU, "").unwrap(), expected);
}

#[test]
fn pairs_come_after_the_file() {
    let pairs = "MODEL.SYNCBN True TRAIN.BATCH_SIZE 256 OPTIM.BASE_LR 6.4 OUT_DIR /tmp/x:y \
                 OPTIM.STEPS [0,30] RNG_SEED 7 MODEL.WEIGHTS a.pth";
    let config = load(DISTRIBUUUU, pairs).unwrap();
    assert!(config.model.syncbn);
    assert_eq!(config.train.batch_size.get(), 256);
    assert_eq!(config.optim.base_lr, 6.4);
    assert_eq!(config.optim.steps, [0, 30]);
    assert_eq!(config.out_dir, Path::new("/tmp/x:y"));
    assert_eq!(config.rng_seed, Some(7));
    assert_eq!(config.model.weights.as_deref(), Some(Path::new("a.pth")));
    let again = load("RNG_SEED: 7\n", "RNG_SEED null OPTIM.BASE_LR 1").unwrap();
    assert_eq!((again.rng_seed, again.optim.base_lr), (None, 1.0));
}

#[test]
fn a_file_that_changes_nothing_is_the_defaults() {
    for text in ["", "# nothing\n", "MODEL:\n  SYNCBN: false\n"] {
        assert_eq!(load(text, "").unwrap(), Config::default(), "{text:?}");
    }
    assert_eq!(Config::load(None, &[]).unwrap(), Config::default());
}

#[test]
fn an_unknown_key_gets_the_nearest_and_its_line() {
    let text = "MODEL:\n  ARCH: resnet18\n  NUM_CLASES: 10\n";
    fails(text, "", &["some.yaml line 3", "MODEL.NUM_CLASES", "did you mean `MODEL.NUM_CLASSES`?"]);
    fails("", "TRAIN.BATCHSIZE 8", &["command line", "did you mean `TRAIN.BATCH_SIZE`?"]);
    fails("", "BATCH_SIZE 8", &["there is no key BATCH_SIZE"]);
    fails("", "TRAIN 8", &["there is no key TRAIN"]);
    fails("QUX:\n  A: 1\n", "", &["line 2", "QUX.A"]);
}

#[test]
fn a_wrong_value_names_its_key_and_line() {
    let cases = [
        ("OPTIM:\n  BASE_LR: fast\n", "line 2", "OPTIM.BASE_LR", "string \"fast\""),
        ("TRAIN:\n\n  BATCH_SIZE: 0\n", "line 3", "TRAIN.BATCH_SIZE", "nonzero"),
        ("TRAIN:\n  WORKERS: -1\n", "line 2", "TRAIN.WORKERS", "-1"),
        ("MODEL:\n  SYNCBN: 3\n", "line 2", "MODEL.SYNCBN", "boolean"),
        ("MODEL:\n  ARCH: resnet81\n", "line 2", "MODEL.ARCH", "did you mean resnet"),
        ("OPTIM:\n  LR_POLICY: exp\n", "line 2", "OPTIM.LR_POLICY", "`cos` or `steps`"),
        ("OPTIM:\n  STEPS: [0, a]\n", "line 2", "OPTIM.STEPS", "string \"a\""),
        ("OPTIM:\n  MOMENTUM: 1.5\n", "line 2", "OPTIM.MOMENTUM", "from 0 to below 1"),
        ("RNG_SEED: 1.5\n", "line 1", "RNG_SEED", "1.5"),
    ];
    for (text, line, key, cause) in cases {
        fails(text, "", &[line, key, cause]);
    }
    fails("", "TEST.IM_SIZE many", &["command line", "TEST.IM_SIZE"]);
}

#[test]
fn what_does_not_go_together_is_refused() {
    fails("", "MODEL.PRETRAINED true", &["MODEL.WEIGHTS"]);
    fails("", "MODEL.NUM_CLASSES 3", &["TRAIN.TOPK", "3 classes"]);
    fails("", "TRAIN.IM_SIZE 300", &["TEST.IM_SIZE", "TRAIN.IM_SIZE"]);
    fails("", "OPTIM.LR_POLICY steps", &["OPTIM.STEPS"]);
    fails("", "OPTIM.LR_POLICY steps OPTIM.STEPS [0,9,9]", &["OPTIM.STEPS"]);
    fails("", "OPTIM.MOMENTUM 0", &["OPTIM.NESTEROV"]);
    fails("", "CFG_DEST ../x", &["CFG_DEST"]);
    fails("", "MODEL.ARCH botnet50 TRAIN.IM_SIZE 16", &["TRAIN.IM_SIZE"]);
    fails("", "OUT_DIR", &["OUT_DIR has no value"]);
}

#[test]
fn a_size_that_nobody_can_allocate_does_not_panic() {
    let sizes = ["TRAIN.IM_SIZE", "TEST.IM_SIZE", "TRAIN.BATCH_SIZE", "TEST.BATCH_SIZE"];
    for key in sizes.into_iter().chain(["TRAIN.WORKERS", "MODEL.NUM_CLASSES", "OPTIM.MAX_EPOCH"]) {
        load("", &format!("TEST.IM_SIZE 65536 {key} 65536")).unwrap();
        for size in ["65537", "18446744073709551615"] {
            fails("", &format!("{key} {size}"), &[key, "must be 65536 at most"]);
        }
    }
}

#[test]
fn what_is_no_yaml_names_its_line() {
    fails("MODEL:\n  ARCH: [resnet18\n", "", &["some.yaml", "line"]);
    fails("A: 1\nA: 2\n", "", &["some.yaml", "line 2", "duplicate"]);
    fails("OUT_DIR: a\n---\nOUT_DIR: b\n", "", &["some.yaml", "multiple"]);
    fails("OPTIM:\n  BASE_LR: .inf\n", "", &["line 2", "OPTIM.BASE_LR", ".inf"]);
    fails("- a\n- b\n", "", &["some.yaml", "sections with keys"]);
    for text in ["A: 1\nA: 2\n", "A: 1\n---\nA: 2\n", "OPTIM:\n  BASE_LR: .inf\n"] {
        let error = load(text, "").unwrap_err();
        assert!(
            ["Options", "_options", "Policy", "policy"].iter().all(|word| !error.contains(word)),
            "words for programmers: {error}"
        );
    }
    let missing = Config::load(Some(Path::new("no/such.yaml")), &[]);
    assert!(missing.unwrap_err().to_string().contains("no/such.yaml"));
}

#[test]
fn a_saved_configuration_is_there_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { out_dir: folder.path().join("new/run"), ..Config::default() };
    let path = config.save().unwrap();
    assert_eq!(path, config.out_dir.join("config.yaml"));
    assert_eq!(Config::load(Some(&path), &[]).unwrap(), config);
    let files = fs::read_dir(&config.out_dir).unwrap();
    assert_eq!(files.count(), 1, "nothing unfinished is left");
}

fn any_config() -> impl Strategy<Value = Config> {
    let sizes = (1_usize..5000, 5_usize..3000, 1_usize..300, any::<bool>());
    let numbers = (1e-9..1e9_f64, 0.0..1.0_f64, 1e-300..1.0_f64, 0.1..0.99_f64);
    let words = ("[a-z0-9 :#'\"{}~-]{1,12}", proptest::option::of(any::<u64>()));
    let arch = prop::sample::select(vec!["resnet18", "resnet50", "botnet50", "resnet8"]);
    (sizes, numbers, words, arch).prop_map(|(sizes, numbers, words, arch)| {
        let mut config = Config::default();
        let some = |value| NonZeroUsize::new(value).unwrap();
        config.train.batch_size = some(sizes.0);
        config.model.num_classes = some(sizes.1);
        config.train.workers = some(sizes.2);
        config.model.syncbn = sizes.3;
        config.optim.base_lr = numbers.0;
        config.optim.min_lr = numbers.1;
        config.optim.weight_decay = numbers.2;
        config.optim.momentum = numbers.3;
        config.train.split = words.0.clone();
        config.out_dir = words.0.into();
        config.rng_seed = words.1;
        config.model.arch = arch.parse().unwrap();
        config
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_written_is_read_back(config in any_config()) {
        let read = load(&config.to_yaml(), "");
        prop_assert_eq!(read, Ok(config));
    }

    #[test]
    fn a_pair_does_what_a_line_does(config in any_config()) {
        let pairs = format!(
            "TRAIN.BATCH_SIZE {} OPTIM.BASE_LR {:?} MODEL.SYNCBN {} MODEL.ARCH {} \
             MODEL.NUM_CLASSES {}",
            config.train.batch_size,
            config.optim.base_lr,
            config.model.syncbn,
            config.model.arch,
            config.model.num_classes,
        );
        let by_pairs = load("", &pairs).unwrap();
        let lines = format!(
            "TRAIN: {{BATCH_SIZE: {}}}\nOPTIM: {{BASE_LR: {:?}}}\n\
             MODEL: {{SYNCBN: {}, ARCH: {}, NUM_CLASSES: {}}}\n",
            config.train.batch_size,
            config.optim.base_lr,
            config.model.syncbn,
            config.model.arch,
            config.model.num_classes,
        );
        prop_assert_eq!(load(&lines, ""), Ok(by_pairs));
    }

    #[test]
    fn any_text_is_read_or_refused_in_one_line(text in "\\PC{0,80}") {
        let _ = load(&text, "");
    }
}

#[test]
fn a_file_that_cannot_be_written_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("best.bpk");
    // Where a folder is, no file can be put.
    fs::create_dir(&place).unwrap();
    write_whole(&place, b"weights").unwrap_err();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn the_shipped_files_are_configurations() {
    let mut out_dirs = Vec::new();
    for entry in fs::read_dir("configs").unwrap() {
        let path = entry.unwrap().path();
        let config = Config::load(Some(&path), &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_ne!(config, Config::default(), "{}", path.display());
        out_dirs.push(config.out_dir);
    }
    out_dirs.sort();
    out_dirs.dedup();
    assert_eq!(out_dirs.len(), 6, "each trains in a folder of its own");
}
