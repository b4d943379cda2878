//! Chooses the route of gradients, alike on all ranks, at the beginning.

use bonfire_collective::ProcessGroup;
use burn::tensor::Device;

use super::Engine;
use crate::world::timeouts::WarmUp;
use crate::{DdpConfig, GradientCompression, GradientRoute, TrainError};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways<'a> {
    pub(crate) config: &'a DdpConfig,
    /// The device of this rank's model, if all of it is on one.
    pub(crate) device: Option<&'a Device>,
    /// True if some ranks have the same rows of parameters.
    pub(crate) copies: bool,
    pub(crate) group: &'a WarmUp,
}

#[derive(Debug)]
pub(crate) enum Chosen {
    Host,
    Device(Box<dyn Engine>),
}

/// The reason why ranks do not use an available route over their devices.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The route does not exist; the same on all ranks.
    NoWay(String),
    Failed(TrainError),
}

/// The failures of an engine's group and of the group that it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Each may fail alone.
    Own,
    /// Both fail together.
    Shared,
}

/// Forms the engine with the other ranks, on a rank that is ready for a route over devices.
pub(crate) type Form = Box<dyn FnOnce(&WarmUp, Fate) -> Result<Box<dyn Engine>, Refusal>>;

/// Chooses the route; every rank calls it. Rank 0 logs the choice and the reason.
///
/// # Errors
/// [`TrainError::NoDeviceRoute`] on all ranks if the configuration selects a route over devices that is not available;
/// [`TrainError::Collective`] if a rank fails.
pub(crate) fn choose(ways: Ways<'_>) -> Result<Chosen, TrainError> {
    let Ways { config, device, copies, group } = ways;
    let found = match forbidden(config, copies) {
        Some(reason) => Err(reason.to_owned()),
        None => over_devices(config.route, device, group, Fate::Own)?,
    };
    let speaks = group.rank().get() == 0;
    match (found, config.route) {
        (Ok(engine), _) => {
            if speaks {
                tracing::info!(
                    rank = 0,
                    route = ?config.route,
                    timing = ?engine.timing(),
                    "gradients are sent from device to device"
                );
            }
            Ok(Chosen::Device(engine))
        }
        (Err(reason), route @ (GradientRoute::Device | GradientRoute::Nccl)) => {
            Err(TrainError::NoDeviceRoute { route, reason })
        }
        (Err(reason), GradientRoute::Auto | GradientRoute::Host) => {
            // A build for the CPU has no other way, and its user knows.
            if speaks && local::missing_feature(GradientRoute::Auto).is_some() {
                tracing::debug!(rank = 0, reason, "gradients are sent through host memory");
            } else if speaks {
                tracing::info!(rank = 0, reason, "gradients are sent through host memory");
            }
            Ok(Chosen::Host)
        }
    }
}

fn forbidden(config: &DdpConfig, copies: bool) -> Option<&'static str> {
    if config.route == GradientRoute::Host {
        return Some("DdpConfig::route selects it");
    }
    if config.compression != GradientCompression::None {
        return Some("gradients are compressed, which is done on the CPU");
    }
    if copies {
        return Some(
            "parameters are cut among some ranks and copied to the others, which is done through host memory",
        );
    }
    None
}

/// The engine of all ranks, or the reason for its absence, the same on all.
pub(crate) fn over_devices(
    route: GradientRoute,
    device: Option<&Device>,
    group: &WarmUp,
    fate: Fate,
) -> Result<Result<Box<dyn Engine>, String>, TrainError> {
    if let Some(feature) = local::missing_feature(route) {
        // All ranks run the same build.
        let reason = format!("this program was built without the feature {feature}");
        return Ok(Err(reason));
    }
    let ready = match device {
        Some(device) => local::prepare(route, device),
        None => Err("the model has its parameters on several devices, or none".to_owned()),
    };
    let form = match agreed(group, ready)? {
        Ok(form) => form,
        Err(reason) => return Ok(Err(reason)),
    };
    match form(group, fate) {
        Ok(engine) => Ok(Ok(engine)),
        Err(Refusal::NoWay(reason)) => Ok(Err(reason)),
        Err(Refusal::Failed(error)) => Err(error),
    }
}

/// This rank's value, if all ranks have one; or the reason of the first that has none.
#[track_caller]
fn agreed<T>(
    group: &ProcessGroup,
    mine: Result<T, String>,
) -> Result<Result<T, String>, TrainError> {
    let reason = mine.as_ref().err().map_or("", |reason| reason);
    let reasons = group.all_gather_bytes(reason.as_bytes())?;
    let failed = reasons.iter().position(|reason| !reason.is_empty());
    Ok(match failed {
        None => mine,
        Some(rank) => Err(format!("rank {rank}: {}", String::from_utf8_lossy(&reasons[rank]))),
    })
}

fn missing_feature(route: GradientRoute) -> Option<&'static str> {
    match route {
        GradientRoute::Host => None,
        _ => (!cfg!(feature = "cuda")).then_some("cuda"),
    }
}

/// This rank's part of a route over devices.
#[cfg(all(feature = "cuda", not(test)))]
mod local {
    pub(super) use super::super::cuda::prepare;
    pub(super) use super::missing_feature;
}

#[cfg(not(any(feature = "cuda", test)))]
mod local {
    use burn::tensor::Device;

    pub(super) use super::missing_feature;
    use super::{Form, GradientRoute};

    pub(super) fn prepare(_route: GradientRoute, _device: &Device) -> Result<Form, String> {
        unreachable!("asked before")
    }
}

/// In tests, models on the CPU have an engine if it is requested.
#[cfg(test)]
mod local {
    use burn::tensor::Device;

    use super::super::double;
    use super::{Form, GradientRoute};

    pub(super) fn missing_feature(route: GradientRoute) -> Option<&'static str> {
        match route {
            GradientRoute::Device => None,
            other => super::missing_feature(other),
        }
    }

    pub(super) fn prepare(route: GradientRoute, device: &Device) -> Result<Form, String> {
        match route {
            GradientRoute::Device if double::knows(device) => Ok(Box::new(double::form)),
            _ => other(route, device),
        }
    }

    #[cfg(feature = "cuda")]
    use super::super::cuda::prepare as other;

    #[cfg(not(feature = "cuda"))]
    fn other(_route: GradientRoute, device: &Device) -> Result<Form, String> {
        Err(format!("the model is on {device:?}"))
    }
}

#[cfg(test)]
mod tests {
    use bonfire_collective::GroupOptions;
    use bonfire_testkit::local;

    use super::*;
    use crate::world::tests::world;

    /// Parts of a model on several devices have no device in common, from which their gradients would be sent.
    #[test]
    fn a_model_without_a_device_takes_the_way_through_the_host() {
        let chosen = |route: GradientRoute| {
            let config = DdpConfig { route, ..DdpConfig::default() };
            local(2, GroupOptions::default(), |group| {
                let group = &world(group).warm_up();
                choose(Ways { config: &config, device: None, copies: false, group })
            })
        };
        for route in [GradientRoute::Auto, GradientRoute::Host] {
            for found in chosen(route) {
                assert!(matches!(found, Ok(Chosen::Host)), "{route:?}: {found:?}");
            }
        }
        for found in chosen(GradientRoute::Device) {
            let error = found.unwrap_err().to_string();
            assert!(error.contains("on several devices"), "{error}");
        }
    }

    #[test]
    fn what_the_configuration_forbids_is_said() {
        let with = |change: fn(&mut DdpConfig)| {
            let mut config = DdpConfig::default();
            change(&mut config);
            forbidden(&config, false)
        };
        assert_eq!(with(|_| ()), None);
        for route in [GradientRoute::Device, GradientRoute::Nccl] {
            let config = DdpConfig { route, ..DdpConfig::default() };
            assert_eq!(forbidden(&config, false), None);
        }
        let host = with(|config| config.route = GradientRoute::Host).unwrap();
        assert!(host.contains("route"), "{host}");
        let compressed = with(|config| config.compression = GradientCompression::Bf16).unwrap();
        assert!(compressed.contains("compressed"), "{compressed}");
    }
}
