//! Checks beyond types: ranges, and values that contradict each other.

use super::{Config, LrPolicy, OptimSection};
use crate::model::Arch;

type Fault = (&'static str, String);

/// Products of several sizes that are far larger cannot be counted, and no memory has them.
const SIZE_MAX: usize = 1 << 16;

pub(super) fn check(config: &Config) -> Result<(), Fault> {
    check_sizes(config)?;
    check_numbers(&config.optim)?;
    check_steps(&config.optim)?;
    check_model(config)?;
    let (train, test) = (&config.train, &config.test);
    if train.topk > config.model.num_classes {
        let classes = config.model.num_classes;
        let cause = format!("is {}, but there are {classes} classes", train.topk);
        return Err(("TRAIN.TOPK", cause));
    }
    if test.im_size < train.im_size {
        let cause = format!(
            "is {}, less than the {} of TRAIN.IM_SIZE, which are cut out of it",
            test.im_size, train.im_size
        );
        return Err(("TEST.IM_SIZE", cause));
    }
    if config.cfg_dest.is_empty() || config.cfg_dest.contains('/') {
        return Err(("CFG_DEST", "is not the name of a file".to_owned()));
    }
    Ok(())
}

fn check_sizes(config: &Config) -> Result<(), Fault> {
    let Config { train, test, .. } = config;
    let sizes = [
        ("MODEL.NUM_CLASSES", config.model.num_classes),
        ("TRAIN.BATCH_SIZE", train.batch_size),
        ("TRAIN.IM_SIZE", train.im_size),
        ("TRAIN.WORKERS", train.workers),
        ("TEST.BATCH_SIZE", test.batch_size),
        ("TEST.IM_SIZE", test.im_size),
        ("OPTIM.MAX_EPOCH", config.optim.max_epoch),
    ];
    match sizes.into_iter().find(|(_, size)| size.get() > SIZE_MAX) {
        Some((key, size)) => Err((key, format!("is {size}, but must be {SIZE_MAX} at most"))),
        None => Ok(()),
    }
}

fn check_numbers(optim: &OptimSection) -> Result<(), Fault> {
    let fraction = |value: f64| (0.0..=1.0).contains(&value);
    let rules = [
        (
            "OPTIM.BASE_LR",
            optim.base_lr,
            "above 0",
            optim.base_lr > 0.0 && optim.base_lr.is_finite(),
        ),
        ("OPTIM.MIN_LR", optim.min_lr, "from 0 to 1", fraction(optim.min_lr)),
        (
            "OPTIM.LR_MULT",
            optim.lr_mult,
            "above 0",
            optim.lr_mult > 0.0 && optim.lr_mult.is_finite(),
        ),
        (
            "OPTIM.MOMENTUM",
            optim.momentum,
            "from 0 to below 1",
            (0.0..1.0).contains(&optim.momentum),
        ),
        ("OPTIM.DAMPENING", optim.dampening, "from 0 to 1", fraction(optim.dampening)),
        ("OPTIM.WARMUP_FACTOR", optim.warmup_factor, "from 0 to 1", fraction(optim.warmup_factor)),
        (
            "OPTIM.WEIGHT_DECAY",
            optim.weight_decay,
            "not below 0",
            optim.weight_decay >= 0.0 && optim.weight_decay.is_finite(),
        ),
    ];
    match rules.into_iter().find(|(.., holds)| !holds) {
        Some((key, value, wanted, _)) => Err((key, format!("is {value}, but must be {wanted}"))),
        None => Ok(()),
    }
}

fn check_steps(optim: &OptimSection) -> Result<(), Fault> {
    let (steps, nesterov) = (&optim.steps, optim.nesterov);
    let ascends = steps.windows(2).all(|pair| pair[0] < pair[1]);
    if optim.lr_policy == LrPolicy::Steps && (steps.first() != Some(&0) || !ascends) {
        let cause = format!("is {steps:?}, but LR_POLICY steps needs epochs that ascend from 0");
        return Err(("OPTIM.STEPS", cause));
    }
    if nesterov && (optim.momentum == 0.0 || optim.dampening != 0.0) {
        let cause = "needs a MOMENTUM above 0 and a DAMPENING of 0";
        return Err(("OPTIM.NESTEROV", cause.to_owned()));
    }
    Ok(())
}

fn check_model(config: &Config) -> Result<(), Fault> {
    let model = &config.model;
    if model.pretrained {
        let cause = "nothing is downloaded; give MODEL.WEIGHTS a file with parameters";
        return Err(("MODEL.PRETRAINED", cause.to_owned()));
    }
    if model.arch == Arch::DenseNet121 && model.zero_init_residual {
        let cause = "is true, but densenet121 has no residual blocks";
        return Err(("MODEL.ZERO_INIT_RESIDUAL", cause.to_owned()));
    }
    // Its last feature map would be a single pixel, which has nothing to attend to.
    const BOTNET_SIDE_MIN: usize = 17;
    if model.arch == Arch::BotNet50 && config.train.im_size.get() < BOTNET_SIDE_MIN {
        let side = config.train.im_size;
        let cause = format!("is {side}, but botnet50 needs {BOTNET_SIDE_MIN} pixels at least");
        return Err(("TRAIN.IM_SIZE", cause));
    }
    Ok(())
}
