//! All schedules train the same bits as one rank.

use burn::optim::{GradientsAccumulator, GradientsParams};

use super::*;

const STEPS: u32 = 2;

const KINDS: [Kind; 5] = [
    Kind::GPipe,
    Kind::OneForwardOneBackward,
    Kind::Interleaved,
    Kind::ZeroBubbleH1,
    Kind::ZeroBubbleV,
];

fn loss(model: &Part, (tokens, next): Batch) -> Tensor<1> {
    let at_once = WeightGradients::at_once();
    let stream = model.forward(model.embed(tokens), &at_once);
    model.loss(stream, next, &at_once)
}

/// What one rank makes of the same micro-batches: its parameters, and its losses.
fn alone() -> (Vec<u32>, Vec<f64>) {
    let mut all = on_ranks(1, |world| {
        let device = world.device().autodiff();
        let mut ddp = Ddp::new(Part::whole(&device), &world).unwrap();
        let (mut optimizer, mut losses) = (adamw(), Vec::new());
        for step in 0..STEPS {
            let mut batches = batches(step, 2, &device);
            let last = batches.pop().unwrap();
            let mut sum = 0.0;
            for batch in batches {
                let done = ddp.no_sync(|model| loss(model, batch)).unwrap();
                sum += done.loss.value().unwrap();
            }
            let done = ddp.backward(|model| loss(model, last)).unwrap();
            sum += done.loss.value().unwrap();
            losses.push(sum / f64::from(MICRO_BATCHES));
            ddp.step(&mut optimizer, 0.01, done.gradients).unwrap();
        }
        (bits(ddp.module()), losses)
    });
    all.remove(0)
}

/// The same of a pipeline.
fn piped(schedule: &Schedule) -> (Vec<u32>, Vec<f64>) {
    let ranks = schedule.ranks().get();
    let all = on_ranks(ranks, |world| {
        let device = world.device().autodiff();
        let stages = parts(schedule, &world);
        let mut pipeline = Pipeline::new(stages, schedule.clone(), &world).unwrap();
        let (mut optimizer, mut losses) = (adamw(), Vec::new());
        for step in 0..STEPS {
            let batches = batches(step, 2, &device);
            let done = pipeline.backward(&batches, Part::stage).unwrap();
            losses.push(done.loss.value().unwrap());
            assert_eq!(done.output.busy.len(), ranks as usize);
            assert!((0.0..1.0).contains(&done.output.bubble()));
            let gradients = done.gradients;
            pipeline.step(&mut optimizer, 0.01, gradients).unwrap();
        }
        let own = schedule.stages_on(world.rank()).into_iter();
        let own = own.zip(pipeline.stages()).map(|(n, stage)| (n, bits(stage)));
        let own: Vec<_> = own.collect();
        // The modules of all stages, of which this rank has trained some.
        let runs = partition(&[1.0; LAYERS], schedule.stages() as usize).unwrap();
        let all = runs.iter().map(|run| Part::whole(&device).part(run.clone()));
        let all = pipeline.gather(all.collect()).unwrap();
        for (stage, trained) in &own {
            assert!(bits(&all[*stage as usize]) == *trained);
        }
        (own, losses, bits(&all))
    });
    let whole = all[0].2.clone();
    assert!(all.iter().all(|(.., others)| *others == whole));
    let losses = all[0].1.clone();
    assert!(all.iter().all(|(_, others, _)| *others == losses), "all ranks know the loss");
    let mut stages: Vec<_> = all.into_iter().flat_map(|(stages, ..)| stages).collect();
    stages.sort();
    (stages.into_iter().flat_map(|(_, bits)| bits).collect(), losses)
}

#[test]
fn every_schedule_trains_the_bits_of_one_rank() {
    let expected = alone();
    for ranks in [1, 2, 3, 4] {
        for kind in KINDS {
            let possible = ranks > 1 || kind != Kind::Interleaved;
            if possible && (ranks != 3 || kind == Kind::ZeroBubbleH1) {
                let found = piped(&schedule(kind, ranks));
                assert!(found == expected, "{kind} on {ranks} ranks");
            }
        }
    }
}

/// What two ranks with a model each make of it, and what two pipelines of two ranks do.
#[test]
fn pipelines_beside_each_other_train_the_bits_of_data_parallel_ranks() {
    let replicas = on_ranks(2, |world| {
        let device = world.device().autodiff();
        let mut ddp = Ddp::new(Part::whole(&device), &world).unwrap();
        let mut optimizer = adamw();
        for step in 0..STEPS {
            let mut batches = batches(10 * step + world.rank().get(), 2, &device);
            let last = batches.pop().unwrap();
            for batch in batches {
                ddp.no_sync(|model| loss(model, batch)).unwrap();
            }
            let done = ddp.backward(|model| loss(model, last)).unwrap();
            ddp.step(&mut optimizer, 0.01, done.gradients).unwrap();
        }
        bits(ddp.module())
    });
    let schedule = schedule(Kind::ZeroBubbleV, 2);
    for placement in [Placement::replicated(), Placement::zero1(), Placement::zero2()] {
        let all = on_ranks(4, |world| {
            let mesh = world.mesh("pp=2,dp=2").unwrap();
            let (pp, data) = (mesh.sub(Axis::Pp), mesh.data());
            let device = world.device().autodiff();
            let axes = Axes { stages: pp, data };
            let config = DdpConfig::default().with_placement(placement);
            let stages = parts(&schedule, pp);
            let pipeline = Pipeline::with_config(stages, schedule.clone(), axes, config);
            let (mut pipeline, mut optimizer) = (pipeline.unwrap(), adamw());
            for step in 0..STEPS {
                let batches = batches(10 * step + data.rank().get(), 2, &device);
                let done = pipeline.backward(&batches, Part::stage).unwrap();
                pipeline.step(&mut optimizer, 0.01, done.gradients).unwrap();
            }
            let own = schedule.stages_on(pp.rank()).into_iter();
            let own = own.zip(pipeline.stages()).map(|(n, stage)| (n, bits(stage)));
            own.collect::<Vec<_>>()
        });
        // Ranks 0 and 2 are one pipeline.
        let mut stages = [all[0].clone(), all[2].clone()].concat();
        stages.sort();
        let found: Vec<u32> = stages.into_iter().flat_map(|(_, bits)| bits).collect();
        assert!(found == replicas[0], "{placement}");
        assert!((&all[0], &all[2]) == (&all[1], &all[3]), "{placement}");
    }
}

/// The norm is that of the whole model, on all ranks.
#[test]
fn every_element_counts_once_in_the_norm() {
    let device = Device::flex().autodiff();
    let model = Part::whole(&device);
    let mut sum = GradientsAccumulator::new();
    for batch in batches(0, 2, &device) {
        let loss = loss(&model, batch) / MICRO_BATCHES as f32;
        sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
    }
    let mut squares = Squares(sum.grads(), 0.0);
    model.visit(&mut squares);
    let expected = squares.1.sqrt();
    for (kind, ranks) in [(Kind::GPipe, 3), (Kind::ZeroBubbleV, 2)] {
        let schedule = schedule(kind, ranks);
        let norms = on_ranks(ranks, |world| {
            let device = world.device().autodiff();
            let stages = parts(&schedule, &world);
            let mut pipeline = Pipeline::new(stages, schedule.clone(), &world).unwrap();
            let done = pipeline.backward(&batches(0, 2, &device), Part::stage).unwrap();
            let norm = done.gradients.norm().unwrap();
            norm.unwrap().into_scalar::<f64>()
        });
        // A sum of a few thousand squares in 32 bits, which are all positive.
        let tolerance = 1e-4 * expected;
        for norm in &norms {
            assert!((norm - expected).abs() < tolerance, "{norms:?}, not {expected}");
            assert_eq!(norm, &norms[0]);
        }
    }
}

/// Sums the squares of all gradients.
struct Squares(GradientsParams, f64);

impl ModuleVisitor for Squares {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = self.0.remove::<D>(param.id).unwrap();
        let values = gradient.into_data().try_to_vec::<f32>().unwrap();
        let squares = values.into_iter().map(|value| f64::from(value).powi(2));
        self.1 += squares.sum::<f64>();
    }
}

/// Gradients that come out of order wait for their turn.
#[test]
fn backward_passes_in_any_order_give_the_same_bits() {
    let count = MICRO_BATCHES;
    let list = |stage: u32| {
        let forward = (0..count).map(|micro_batch| format!("{stage}F{micro_batch}"));
        let backward = (0..count).rev().map(|micro_batch| format!("{stage}B{micro_batch}"));
        forward.chain(backward).collect::<Vec<_>>().join(",")
    };
    let text = format!("{}\n{}\n", list(0), list(1));
    let schedule = Schedule::from_csv(&text).unwrap();
    assert!(piped(&schedule) == alone());
}
