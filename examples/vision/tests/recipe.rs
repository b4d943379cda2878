//! The recipe of the tutorials: an epoch of `configs/cifar10-resnet18.yaml` as two processes, on images that the test
//! makes.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::fs;
use std::path::Path;

use common::{Pictures, figure, succeeds};
use serde_json::Value;

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/cifar10-resnet18.yaml");

/// The losses of a report, one for each step.
fn losses(report: &Value) -> Vec<f64> {
    let curves = report["curves"].as_array().unwrap();
    let curve = curves.iter().find(|curve| curve["tag"] == "loss").unwrap();
    let points = curve["points"].as_array().unwrap().iter();
    points.map(|point| point["value"].as_f64().unwrap()).collect()
}

fn report(out_dir: &Path) -> Value {
    let text = fs::read_to_string(out_dir.join("report.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn an_epoch_of_the_recipe_learns_on_two_ranks_which_agree() {
    let pictures = Pictures::of(5000, 500);
    let out_dir = pictures.out_dir("run");
    let pairs = format!(
        "--cfg {CONFIG} TRAIN.DATASET {} OUT_DIR {} TRAIN.BATCH_SIZE 128 TRAIN.PRINT_FREQ 1 OPTIM.MAX_EPOCH 1 \
         RNG_SEED 5",
        pictures.path().display(),
        out_dir.display()
    );
    let pairs: Vec<String> = pairs.split(' ').map(str::to_owned).collect();
    let lines = succeeds("train", 2, &pairs);
    let all = lines.join("\n");
    assert!(all.contains("resnet18 with"), "{all}");
    assert!(all.contains("2 ranks × batch 128 × accumulation 1 = global batch 256"), "{all}");

    let report = report(&out_dir);
    let of = |name: &str| report[name].as_u64();
    assert_eq!(
        (of("world_size"), of("steps"), of("samples_per_step")),
        (Some(2), Some(20), Some(256))
    );
    let losses = losses(&report);
    assert_eq!(losses.len(), 20);
    assert!(losses[19] < losses[0] / 10.0, "{losses:?}");
    let line = lines.iter().find(|line| line.contains("epoch 1 | "));
    let line = line.unwrap_or_else(|| panic!("{all}"));
    let accuracy = figure(line, "Acc@1");
    assert!(accuracy > 90.0, "ten classes were learnt to {accuracy} per cent only: {all}");

    // Each rank tested half of the images with its own parameters; rank 0's, which were kept, come to the same on all.
    let saved = out_dir.join("config.yaml").display().to_string();
    let tested = succeeds("test", 1, &["--cfg".to_owned(), saved]);
    let alone = tested.iter().rfind(|line| line.contains("500 pictures"));
    let alone = alone.unwrap_or_else(|| panic!("{tested:#?}"));
    for word in ["loss", "Acc@1"] {
        let (both, alone) = (figure(line, word), figure(alone, word));
        assert!((both - alone).abs() < 2e-3, "{word}: {both} {alone}");
    }
}
