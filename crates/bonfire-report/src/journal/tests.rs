//! Journals of several ranks, as threads.

use std::fs;
use std::path::Path;
use std::thread::sleep;

use bonfire_collective::{CollectiveError, GroupOptions, ProcessGroup, Rank};
use bonfire_plan::Bytes;
use bonfire_testkit::{assert_each_says, local, read_by_tensorboard};
use bonfire_train::{Ddp, DeviceKind, LocalRank, Loss, TrainError};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;

use super::*;
use crate::ModelFlops;
use crate::tensorboard::tests::begins_at;

const LATE: Duration = Duration::from_millis(500);

fn config(steps_done: u64, folder: Option<&Path>) -> JournalConfig {
    let config = JournalConfig::new("a <small> model", steps_done + 4)
        .with_samples_per_step(6, "images")
        .with_steps_done(steps_done);
    match folder {
        Some(folder) => config.with_folder(folder),
        None => config,
    }
}

fn model(device: &Device) -> Linear {
    LinearConfig::new(1, 1).with_bias(false).init(device)
}

/// Two steps of two ranks, of which rank 1 has twice the samples and is late with its data; rank r's
/// loss is 1 + r. The last figures and the report.
fn keep(world: &World, config: JournalConfig) -> Result<(Figures, Report), ReportError> {
    let device = world.device().autodiff();
    let mut ddp = Ddp::new(model(&device), world)?;
    let mut journal = Journal::new(world, config)?;
    let rank = world.rank().get();
    for _ in 0..2 {
        journal.time(Activity::Data, || sleep(LATE * rank));
        let step = ddp.backward(|model| {
            let ones = Tensor::<2>::ones([1, 1], &device);
            let nothing = (model.forward(ones.clone()) - model.forward(ones)).mean();
            Loss::mean_over(nothing + (1.0 + rank as f32), 2 + 2 * rank as usize)
        })?;
        journal.step(&step);
    }
    assert!(journal.figures(Some(0.5))?.is_some());
    journal.value("accuracy", 0.75)?;
    let step = ddp.backward(|model| {
        let x = Tensor::<2>::ones([1, 1], &device);
        Loss::mean_over(model.forward(x).mean().mul_scalar(0.0) + 4.0, 1)
    })?;
    journal.step(&step);
    let figures = journal.figures(None)?.expect("there was a step");
    assert_eq!(journal.figures(None)?, None, "nothing happened since");
    Ok((figures, journal.close()?))
}

pub(crate) fn on_ranks<R: Send>(ranks: u32, body: impl Fn(World) -> R + Sync) -> Vec<R> {
    local(ranks, GroupOptions::default(), |group| body(world(group)))
}

fn world(group: ProcessGroup) -> World {
    let local =
        LocalRank { local_rank: group.rank().get(), local_world_size: group.world_size().get() };
    World::new(group, local, DeviceKind::Cpu).unwrap()
}

fn two_ranks(config: &JournalConfig) -> Vec<(Figures, Report)> {
    on_ranks(2, |world| keep(&world, config.clone()).unwrap())
}

#[test]
fn figures_are_over_all_ranks_by_samples() {
    let kept = two_ranks(&config(0, None));
    let (figures, report) = &kept[0];
    assert_eq!(kept[1].0, *figures);
    // (2 * 1 + 4 * 2) / 6.
    let losses: Vec<Point> = report.curve("loss").to_vec();
    let expected = [(2, 10.0 / 6.0), (3, 4.0)];
    assert_eq!(losses.len(), expected.len());
    for (point, (step, value)) in losses.iter().zip(expected) {
        assert_eq!(point.step, step);
        assert!((point.value - value).abs() < 4.0 * f64::from(f32::EPSILON));
    }
    assert_eq!(report.curve("learning_rate"), [Point { step: 2, value: 0.5 }]);
    assert_eq!(report.curve("nothing"), []);
    assert!(figures.samples_per_second > 0.0);
}

#[test]
fn the_rank_that_is_late_is_the_straggler_on_all_ranks() {
    let kept = two_ranks(&config(0, None));
    for (_, report) in &kept {
        assert_eq!(report.ranks, kept[0].1.ranks);
        assert!(report.ranks[1].data >= 2 * LATE);
        let straggler = report.straggler.expect("rank 1 slept");
        assert_eq!(straggler.rank, Rank::new(1));
        let text = report.to_string();
        assert!(text.contains("rank 1 is the straggler"), "{text}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_report_has_the_memory_of_all_ranks_beside_what_was_planned() {
    let kept = two_ranks(&config(0, None));
    let (_, report) = &kept[0];
    // Threads of one process, which had as much whoever asks; the last to ask may see more.
    assert_eq!(report.memory.peaks.len(), 2);
    assert!(report.memory.peaks.iter().all(|peak| *peak > 1 << 20));
    assert_eq!(report.memory, kept[1].1.memory);
    let text = report.to_string();
    assert!(text.contains("MiB at the most\n"), "{text}");
    let mut report = report.clone();
    report.memory.peaks = vec![3 << 30, 4 << 30];
    let text = report.with_memory_planned(Bytes::new(5 << 30)).to_string();
    assert!(text.contains("4 GiB at the most; planned 5 GiB (+25.0 %)"), "{text}");
}

fn log(folder: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(folder.join("log.jsonl")).unwrap();
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

/// The steps from which on the event files hold, oldest first.
fn events(folder: &Path) -> Vec<u64> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let paths = entries.map(|entry| entry.path());
    let mut files: Vec<_> =
        paths.filter(|path| path.to_string_lossy().contains("tfevents")).collect();
    files.sort();
    files.iter().map(|file| begins_at(&fs::read(file).unwrap())).collect()
}

#[test]
fn a_journal_without_values_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(0, Some(&folder.path().join("runs")));
    on_ranks(2, |world| drop(Journal::new(&world, config.clone()).unwrap().close().unwrap()));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn rank_0_writes_every_value_and_a_run_that_goes_on_continues() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("runs/a");
    two_ranks(&config(0, Some(&folder)));
    let lines = log(&folder);
    let steps: Vec<_> = lines.iter().map(|line| line["step"].clone()).collect();
    assert_eq!(steps, [2, 2, 3]);
    assert_eq!(lines[0]["learning_rate"], 0.5);
    assert_eq!(lines[1]["accuracy"], 0.75);
    for tag in ["loss", "throughput", "exposed_communication_seconds"] {
        assert!(lines[2][tag].is_f64(), "{tag} is missing in {}", lines[2]);
    }

    assert_eq!(events(&folder), [0]);
    two_ranks(&config(3, Some(&folder)));
    assert_eq!(events(&folder), [0, 4], "what step 3 has left is kept");
    let steps: Vec<_> = log(&folder).iter().map(|line| line["step"].clone()).collect();
    assert_eq!(steps, [2, 2, 3, 5, 5, 6]);
    if let Some(scalars) = read_by_tensorboard(&folder) {
        let losses = scalars.iter().filter(|(tag, ..)| tag == "loss");
        let steps: Vec<u64> = losses.map(|(_, step, _)| *step).collect();
        assert_eq!(steps, [2, 3, 5, 6]);
    }
    two_ranks(&config(0, Some(&folder)));
    assert_eq!(log(&folder).len(), 3, "a new run starts a new log");
    assert_eq!(events(&folder), [0]);
    let earlier = folder.join("earlier-1");
    assert_eq!(log(&earlier).len(), 6, "and that of the run before is kept");
    assert_eq!(events(&earlier), [0, 4]);
}

#[test]
fn every_run_has_a_folder_of_its_own_that_all_ranks_agree_on() {
    let parent = tempfile::tempdir().unwrap();
    let config = config(0, None).with_new_folder(parent.path().join("runs"), "small");
    let runs: Vec<PathBuf> = (0..2)
        .map(|_| {
            let kept = two_ranks(&config);
            let folders: Vec<_> = kept.iter().map(|(_, report)| report.folder.clone()).collect();
            assert_eq!(folders[0], folders[1]);
            assert_eq!(kept[0].1.host, kept[1].1.host);
            folders[0].clone().unwrap()
        })
        .collect();
    assert_ne!(runs[0], runs[1]);
    for folder in &runs {
        assert!(folder.to_string_lossy().contains("-small"), "{folder:?}");
        assert_eq!(log(folder).len(), 3);
        assert_eq!(events(folder), [0]);
    }
    // One that ends before it has measured anything leaves none.
    on_ranks(2, |world| {
        let journal = Journal::new(&world, config.clone()).unwrap();
        assert!(journal.folder().unwrap().exists());
        journal.close().unwrap();
    });
    assert_eq!(fs::read_dir(parent.path().join("runs")).unwrap().count(), 2);
}

#[test]
fn the_report_of_a_resumed_run_has_the_curves_of_both_parts() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("run");
    for steps_done in [0, 3] {
        let kept = two_ranks(&config(steps_done, Some(&folder)));
        let report = &kept[0].1;
        report.write(report.folder.as_ref().unwrap()).unwrap();
    }
    let report = Report::read(&folder).unwrap();
    let steps: Vec<u64> = report.curve("loss").iter().map(|point| point.step).collect();
    assert_eq!(steps, [2, 3, 5, 6]);
    assert_eq!(report.steps, 6);
}

#[test]
fn tensorboard_reads_all_curves_of_a_journal() {
    let folder = tempfile::tempdir().unwrap();
    let (_, report) = two_ranks(&config(0, Some(folder.path()))).swap_remove(0);
    let Some(read) = read_by_tensorboard(folder.path()) else {
        return;
    };
    let lines = |Curve { tag, points }: &Curve| {
        let line = |point: &Point| format!("{tag} {} {}", point.step, point.value as f32);
        points.iter().map(line).collect::<Vec<_>>()
    };
    let mut expected: Vec<String> = report.curves.iter().flat_map(lines).collect();
    for tag in ["loss", "accuracy", "learning_rate", "throughput", "exposed_communication"] {
        assert!(expected.iter().any(|line| line.starts_with(tag)), "{tag}");
    }
    // Python prints f64; the file has f32.
    let mut read: Vec<String> = read
        .into_iter()
        .map(|(tag, step, value)| format!("{tag} {step} {}", value as f32))
        .collect();
    expected.sort_unstable();
    read.sort_unstable();
    assert_eq!(read, expected);
}

#[test]
fn the_report_is_text_json_and_a_page_with_curves_and_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let (_, report) = two_ranks(&config(0, None)).swap_remove(0);
    let report = report.with_fact("parameters", 1);
    report.write(folder.path().join("new")).unwrap();
    let read = |name| fs::read_to_string(folder.path().join("new").join(name)).unwrap();
    assert_eq!(read("report.txt"), report.to_string());
    let text = report.to_string();
    let parts = [
        "parameters                 1",
        "global batch               6 images",
        "steps                      3",
        "accuracy                   0.7500 after step 2",
        "images per second",
        "  exposed communication",
    ];
    assert_each_says([text], &parts);
    let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
    assert_eq!(json["world_size"], 2);
    assert_eq!(json["curves"][0]["tag"], "loss");
    assert!(json["ranks"][1]["data"].as_f64().unwrap() >= 2.0 * LATE.as_secs_f64());
    assert_eq!(json["straggler"]["rank"], 1);
    let page = read("report.html");
    let parts = [
        "a &lt;small&gt; model",
        "straggler",
        "<tr><td>1</td>",
        "<figcaption>Accuracy<label>",
        "<figcaption>Throughput (images per second)<label>",
        "<th>device</th><td>cpu</td>",
    ];
    assert_each_says([page], &parts);
}

#[test]
fn a_folder_that_cannot_be_made_ends_the_training_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let below_a_file = folder.path().join("file");
    fs::write(&below_a_file, "").unwrap();
    let config = config(0, Some(&below_a_file.join("below")));
    let outcomes = on_ranks(2, |world| keep(&world, config.clone()));
    let errors: Vec<ReportError> = outcomes.into_iter().filter_map(Result::err).collect();
    // The other rank hears of it in the journal's next operation, or in that of a backward pass.
    let [ReportError::Unwritable { path, .. }, heard] = &errors[..] else { panic!("{errors:?}") };
    assert!(path.ends_with("below"), "{errors:?}");
    let (ReportError::Collective(CollectiveError::PeerFailed { rank, .. })
    | ReportError::Train(TrainError::Collective(CollectiveError::PeerFailed { rank, .. }))) = heard
    else {
        panic!("{errors:?}")
    };
    assert_eq!(*rank, Rank::new(0));
}

#[test]
fn figures_carry_their_units() {
    let mut figures = Figures {
        step: 20,
        loss: 2.51239,
        samples_per_second: 12_345.6,
        unit: "tokens",
        ranks: 1,
        model_flops_utilisation: None,
        exposed_communication: Duration::from_micros(1250),
        learning_rate: None,
    };
    let text = "loss 2.5124  12346 tokens/s  exposed communication 1.25 ms";
    assert_eq!(figures.to_string(), text);
    (figures.ranks, figures.model_flops_utilisation) = (2, Some(0.412));
    let text =
        "loss 2.5124  12346 tokens/s (6173 per rank)  MFU 41.2 %  exposed communication 1.25 ms";
    assert_eq!(figures.to_string(), text);
}

#[test]
fn what_a_model_computes_is_reported_of_each_rank() {
    let flops = ModelFlops::per_sample(2e6).with_peak(1e9);
    for (figures, report) in two_ranks(&config(0, None).with_flops(flops)) {
        let of = |samples_per_second: f64| samples_per_second / 2.0 * 2e6 / 1e9;
        let part = figures.model_flops_utilisation.expect("the peak is set");
        let expected = of(figures.samples_per_second);
        assert!((part - expected).abs() <= 4.0 * f64::EPSILON * expected);
        let percent = 100.0 * of(report.samples_per_second);
        let line = format!("model FLOPs utilisation    {percent:.1} % of 1.0 GFLOP/s");
        assert_each_says([report], &[&line]);
    }
}

/// A scaler finds after the pass that nothing is to be taken.
#[test]
fn a_step_that_is_skipped_is_no_step() {
    let all = on_ranks(2, |world| {
        let device = world.device().autodiff();
        let mut ddp = Ddp::new(model(&device), &world).unwrap();
        let mut journal = Journal::new(&world, config(0, None)).unwrap();
        let loss = |model: &Linear, loss: f32| {
            let x = Tensor::<2>::ones([1, 1], &device);
            model.forward(x).mean().mul_scalar(0.0) + loss
        };
        let mut step = |journal: &mut Journal, value| {
            journal.micro_step(&ddp.no_sync(|model| loss(model, value)).unwrap());
            journal.step(&ddp.backward(|model| loss(model, value)).unwrap());
        };
        step(&mut journal, 1.0);
        step(&mut journal, f32::INFINITY);
        journal.skipped();
        journal.skipped();
        step(&mut journal, 3.0);
        let figures = journal.figures(None).unwrap().unwrap();
        step(&mut journal, 7.0);
        journal.skipped();
        assert_eq!(journal.figures(None).unwrap(), None);
        let report = journal.close().unwrap();
        (figures.step, figures.loss, report.steps)
    });
    assert_eq!(all, [(2, 2.0, 2); 2]);
}

#[test]
fn losses_in_16_bits_are_summed_in_more() {
    let all = on_ranks(1, |world| {
        let device = world.device().autodiff();
        let mut ddp = Ddp::new(model(&device), &world).unwrap();
        let mut journal = Journal::new(&world, config(0, None)).unwrap();
        for _ in 0..4 {
            let step = ddp.backward(|model| {
                let x = Tensor::<2>::ones([1, 1], &device);
                let loss = model.forward(x).mean().mul_scalar(0.0) + 2.5;
                Loss::mean_over(loss.cast(DType::F16), 8192)
            });
            journal.step(&step.unwrap());
        }
        journal.figures(None).unwrap().unwrap().loss
    });
    assert_eq!(all, [2.5]);
}
