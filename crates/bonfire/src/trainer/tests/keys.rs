//! Keys of the configuration, and parts of a program, each by what it changes.

use bonfire_config::OptimizerSection;
use bonfire_report::Report;
use burn::nn::LinearConfig;
use burn::optim::GradientsParams;

use super::*;

fn report_of(words: &[&str], parts: fn(Parts<Linear, Batch>) -> Parts<Linear, Batch>) -> Report {
    let reports = spawn(2, |world| {
        let own = parts(Parts::new(model(&world.device()), data(&world, 16)));
        let mut trainer = prepare(&world, &config(words), own)?;
        trainer.fact("data", "a guess");
        trainer.fact("data", "points on a line");
        trainer.fact("parameters", "those of a program");
        trainer.finish()
    });
    reports.unwrap().remove(0)
}

#[test]
fn the_route_of_gradients_is_that_of_the_configuration() {
    let error = format!("{:?}", trained(2, &["gradients.route=device"]).unwrap_err());
    assert!(error.contains("as GradientRoute::Device asks"), "{error}");
    assert!(error.contains("; gradients.route=auto, or "), "{error}");
    trained(2, &["gradients.route=host", "steps=1"]).unwrap();
}

#[test]
fn throughput_is_counted_in_the_programs_units() {
    let report = report_of(&[], |parts| parts);
    // 2 ranks, 2 passes of 4 samples.
    assert_eq!((&*report.unit, report.samples_per_step), ("samples", 16));
    let report =
        report_of(&[], |parts| parts.with_units("tokens", 64).with_flops_per_sample(640.0));
    assert_eq!((&*report.unit, report.samples_per_step), ("tokens", 16 * 64));
    assert_eq!(report.flops, Some(bonfire_report::ModelFlops::per_sample(10.0)));
}

#[test]
fn a_report_has_the_facts_of_the_program() {
    let report = report_of(&[], |parts| parts);
    let of = |wanted: &str| {
        let facts = report.facts.iter().filter(|(name, _)| name == wanted);
        facts.map(|(_, value)| &**value).collect::<Vec<_>>()
    };
    assert_eq!(of("data"), ["points on a line"]);
    assert_eq!(of("parameters"), ["those of a program"]);
    assert_eq!(of("placement"), ["replicated"]);
}

#[test]
fn each_run_of_a_name_has_a_new_folder() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("report.folder={}", folder.path().display());
    let words = [&*place, "report.run_name=lines"];
    for runs in 1..=2 {
        let own = report_of(&words, |parts| parts).folder.unwrap();
        assert!(own.join("report.json").exists() && own.starts_with(folder.path()), "{own:?}");
        let name = own.file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.contains("-lines"), "{name}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), runs);
    }
}

/// Gradients are zero, so that weight decay alone moves a parameter.
#[test]
fn parameters_that_are_named_do_not_decay() {
    let moved = |words: &[&str]| {
        let all = spawn(2, |world| {
            let device = world.device();
            let ones = |shape: [usize; 2]| Tensor::<2>::ones(shape, &device);
            let model = Linear {
                weight: Param::from_tensor(ones([3, 700])),
                bias: Some(Param::from_tensor(ones([1, 700]).reshape([700]))),
            };
            let base = ["steps=1", "batch.accumulation=1", "optimizer.weight_decay=0.5"];
            let config = config(&[&base[..], &["schedule.warmup_steps=0"], words].concat());
            let mut trainer = prepare(&world, &config, (model, data(&world, 16)))?;
            while let Some(batch) = trainer.next_batch()? {
                trainer
                    .step(batch, |model: &Linear, (x, _): Batch| (model.forward(x) * 0.0).mean())?;
            }
            let model = trainer.ddp().whole()?;
            let is_one = |sum: f32, len: f32| (sum - len).abs() < 1e-3 * len;
            let weight: f32 = model.weight.val().sum().into_scalar();
            let bias: f32 = model.bias.unwrap().val().sum().into_scalar();
            Ok::<_, Error>([!is_one(weight, 2100.0), !is_one(bias, 700.0)])
        });
        all.unwrap().remove(0)
    };
    for kind in OptimizerKind::ALL {
        let kind = format!("optimizer.kind={kind}");
        let rate = "optimizer.lr=0.5";
        assert_eq!(moved(&[&kind, rate]), [true, true], "{kind}");
        let words = [&*kind, rate, "optimizer.no_decay=[\"bias\"]"];
        assert_eq!(moved(&words), [true, false], "{kind}");
    }
    let words = ["optimizer.kind=muon", "optimizer.muon_scale=original", "optimizer.lr=0.5"];
    assert_eq!(moved(&[&words[..], &["optimizer.no_decay=[\"w\", \"b\"]"]].concat()), [false; 2]);
    let rows = ["placement=zero1", "optimizer.lr=0.5", "optimizer.no_decay=[\"bias\"]"];
    assert_eq!(moved(&rows), [true, false]);
}

/// A step has the same place in a stream, whatever the forward passes that an earlier run took for one.
#[test]
fn a_stream_goes_on_after_the_same_step_with_other_passes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = format!("checkpoints.folder={}", folder.path().display());
    let seen = |words: &[&str]| {
        let seen = spawn(1, |world| {
            let device = world.device().autodiff();
            let data = Data::stream(move |pass| (pass, batch(&[pass as usize], &device)));
            let config = config(&[words, &[&*folder]].concat());
            let mut trainer = prepare(&world, &config, (model(&world.device()), data))?;
            let mut seen = Vec::new();
            while let Some(batch) = trainer.next_batch()? {
                seen.push(batch.0);
                trainer
                    .step(batch, |model: &Linear, (_, batch): (u64, Batch)| loss(model, batch))?;
            }
            trainer.finish()?;
            Ok::<_, Error>(seen)
        });
        seen.unwrap().remove(0)
    };
    assert_eq!(seen(&["steps=3", "batch.accumulation=2"]), [0, 1, 2, 3, 4, 5]);
    assert_eq!(seen(&["steps=4", "batch.accumulation=1"]), [3]);
    assert_eq!(seen(&["steps=5", "batch.accumulation=3"]), [12, 13, 14]);
}

/// PyTorch's rule for SGD, as its documentation has it, in f64.
fn pytorchs(section: &OptimizerSection, start: f64, gradients: &[f64], rate: f64) -> f64 {
    let momentum = section.momentum.unwrap_or(0.0);
    let (mut value, mut velocity) = (start, None);
    for gradient in gradients {
        let gradient = gradient + section.weight_decay * value;
        let next = match velocity {
            Some(old) => momentum * old + (1.0 - section.dampening) * gradient,
            None => gradient,
        };
        velocity = Some(next);
        value -= rate * if section.nesterov { gradient + momentum * next } else { next };
    }
    value
}

#[test]
fn steps_of_sgd_are_pytorchs() {
    let device = Device::default().autodiff();
    let gradients = [0.5, -1.0, 2.0];
    let plain = ["optimizer.kind=sgd", "optimizer.weight_decay=0.1"];
    let nesterov = ["optimizer.momentum=0.9", "optimizer.nesterov=true"];
    let dampened = ["optimizer.momentum=0.9", "optimizer.dampening=0.25"];
    for more in [&[][..], &nesterov, &dampened] {
        let section = config(&[&plain, more].concat()).optimizer;
        let mut model = LinearConfig::new(1, 1).with_bias(false).init(&device);
        let start = model.weight.val().into_scalar::<f64>();
        let (mut optimizer, _) = optimizer::build(&section, &model, None);
        for gradient in gradients {
            let gradient = Tensor::<2>::full([1, 1], gradient, &device.clone().inner());
            let mut all = GradientsParams::new();
            all.register(model.weight.id, gradient);
            model = optimizer.step(0.1, model, all);
        }
        let found = model.weight.val().into_scalar::<f64>();
        let expected = pytorchs(&section, start, &gradients, 0.1);
        // Three steps of a handful of roundings of numbers near 1.
        let tolerance = 15.0 * f64::from(f32::EPSILON);
        assert!((found - expected).abs() < tolerance, "{section:?}: {found} {expected}");
    }
}

/// Of a plan, which takes their number from the kind.
#[test]
fn every_optimizer_keeps_the_moments_that_its_kind_says() {
    let device = Device::default().autodiff();
    let cases = OptimizerKind::ALL.into_iter().flat_map(|kind| [(kind, None), (kind, Some(0.9))]);
    for (kind, momentum) in cases {
        let mut section = config(&[]).optimizer;
        (section.kind, section.momentum) = (kind, momentum);
        let model = model(&device);
        let (mut optimizer, deferred) = optimizer::build(&section, &model, None);
        assert_eq!(deferred.is_some(), kind.is_fused(), "{kind}");
        let bytes = 4 * model.weight.shape().num_elements();
        let mut all = GradientsParams::new();
        all.register(model.weight.id, model.weight.val().inner());
        optimizer.step(0.1, model, all);
        let expected = kind.matrix_moments().unwrap_or_else(|| kind.moments(momentum));
        // The names in a record have less than a moment.
        let found = optimizer.into_bytes().unwrap().len() / bytes;
        assert_eq!(found, expected as usize, "{kind}, {momentum:?}");
    }
}

#[test]
fn an_optimizer_starts_anew_where_its_state_is_not_wanted() {
    for placement in ["placement=replicated", "placement=zero1"] {
        for (momentum, keeps) in
            [("optimizer.momentum=0.9", true), ("optimizer.momentum=0.0", false)]
        {
            let base = [placement, "optimizer.kind=sgd", momentum, "schedule.decay=constant"];
            let straight = trained(2, &[&base[..], &["steps=6"]].concat()).unwrap();
            for resumes in [true, false] {
                let folder = tempfile::tempdir().unwrap();
                let folder = format!("checkpoints.folder={}", folder.path().display());
                let resume = format!("checkpoints.resume_optimizer={resumes}");
                let run = |steps| trained(2, &[&base[..], &[&folder, &resume, steps]].concat());
                run("steps=4").unwrap();
                let (digest, steps, _) = run("steps=6").unwrap().remove(0);
                assert_eq!(steps, 2);
                let is_same = digest == straight[0].0;
                assert_eq!(is_same, resumes || !keeps, "{placement}, {momentum}, {resumes}");
                // The checkpoint is of another optimizer, unless only its model is wanted.
                let other = ["optimizer.kind=adamw", placement, &folder, &resume, "steps=8"];
                match trained(2, &other) {
                    Ok(trained) => assert!(!(resumes && keeps) && trained[0].1 == 2),
                    Err(error) => {
                        let error = format!("{error:?}");
                        assert!(resumes && error.contains("of another optimizer"), "{error}");
                    }
                }
            }
        }
    }
}

/// Else ranks that evaluate in different steps wait for each other until the timeout.
#[test]
fn a_rank_with_another_configuration_is_named_with_the_key() {
    let train = |words: [&'static str; 2]| {
        spawn(2, |world| {
            let words = ["steps=2", words[world.rank().index()]];
            to_the_end(&world, &words, model(&world.device()), || ())
        })
    };
    let error = format!("{:?}", train(["evaluation.every=10", "evaluation.every=20"]).unwrap_err());
    let says = "rank 0 has evaluation.every=10, and rank 1 has evaluation.every=20";
    assert!(error.contains(says), "{error}");
    let error = format!("{:?}", train(["seed=1", "seed=2"]).unwrap_err());
    assert!(error.contains("rank 0 has seed=1, and rank 1 has seed=2"), "{error}");
    train(["data.workers=1", "data.workers=2"]).unwrap();
}

#[test]
fn a_folder_that_takes_no_files_of_state_is_named() {
    let error = format!("{:?}", trained(1, &["offload.optimizer=/dev/null"]).unwrap_err());
    assert!(error.contains("offload: no files can be kept in /dev/null: "), "{error}");
}
