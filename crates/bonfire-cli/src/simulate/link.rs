//! Which link: by a name, by its figures, or fitted to measurements and kept in a file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use bonfire_plan::WorldSize;
use bonfire_plan::simulate::{Link, LinkModel};
use serde::{Deserialize, Serialize};

use crate::operation::Operation;
use crate::quantity::{bandwidth, seconds, show_bandwidth, show_seconds};

/// Links with a name. Where the figures are from is in the book, chapter "Simulator".
const PRESETS: [(&str, Link); 11] = [
    ("nvlink-h100", wire(3.4e-6, 370e9)),
    ("nvlink-a100", wire(3.4e-6, 240e9)),
    ("pcie4", wire(5.7e-6, 20e9)),
    ("pcie5", wire(5.7e-6, 35e9)),
    ("net-400g", wire(14e-6, 50e9)),
    ("eth-100g", wire(14e-6, 12.5e9)),
    ("eth-25g", wire(14e-6, 3.125e9)),
    ("eth-10g", wire(14e-6, 1.25e9)),
    ("tcp-loopback", wire(4.4e-6, 2.2e9)),
    ("unix", wire(2.2e-6, 3.9e9)),
    (
        "shm",
        Link {
            latency_s: 142e-9,
            s_per_byte: 0.0,
            overhead_s: 0.0,
            copy_s_per_byte: 1.0 / 14e9,
            fold_s_per_byte: 1.0 / 12.3e9,
            short_bytes: 0,
            long_latency_s: 0.0,
        },
    ),
];

const fn wire(latency_s: f64, bytes_per_s: f64) -> Link {
    Link::new(latency_s, 1.0 / bytes_per_s)
}

#[derive(Clone, Debug)]
pub(super) enum LinkSource {
    /// A preset, or figures; with the words that named it.
    Known { name: String, link: Link },
    /// A file that `--write-link` wrote, and which of its transports is meant.
    File { path: PathBuf, transport: Option<String> },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FittedLink {
    pub(super) transport: String,
    pub(super) ranks: u32,
    pub(super) operation: String,
    pub(super) model: LinkModel,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkFile {
    links: Vec<FittedLink>,
}

/// A link that is ready to be used, with its name.
#[derive(Clone, Debug)]
pub(super) struct NamedLink {
    pub(super) name: String,
    pub(super) model: LinkModel,
}

impl FromStr for LinkSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((name, link)) = PRESETS.iter().find(|(name, _)| *name == text) {
            return Ok(Self::Known { name: (*name).to_owned(), link: *link });
        }
        if text.contains('=') {
            return Ok(Self::Known { name: text.to_owned(), link: parameters(text)? });
        }
        let whole = Path::new(text);
        match text.rsplit_once(':') {
            Some((path, transport)) if !whole.exists() => {
                Ok(Self::File { path: path.into(), transport: Some(transport.to_owned()) })
            }
            _ if text.contains(['.', '/']) || whole.exists() => {
                Ok(Self::File { path: whole.to_owned(), transport: None })
            }
            _ => Err(format!(
                "neither a file nor a known link; use one of {}, alpha=TIME,bandwidth=RATE, or a \
                 file",
                preset_names()
            )),
        }
    }
}

impl LinkSource {
    pub(super) fn resolve(
        &self,
        operation: Operation,
        world_size: WorldSize,
    ) -> anyhow::Result<NamedLink> {
        let (path, transport) = match self {
            Self::Known { name, link } => {
                return Ok(NamedLink { name: name.clone(), model: LinkModel::uniform(*link) });
            }
            Self::File { path, transport } => (path, transport.as_deref()),
        };
        let wrong = "is not a file of --write-link; rows of `bonfire bench` are read by --fit";
        let LinkFile { links } = crate::read_json(path, wrong)?;
        let fitted = choose(links, transport, operation, world_size)
            .with_context(|| format!("cannot use the links of {}", path.display()))?;
        Ok(NamedLink {
            name: format!(
                "{}, fitted to {} of {} ranks",
                fitted.transport, fitted.operation, fitted.ranks
            ),
            model: fitted.model,
        })
    }
}

impl fmt::Display for NamedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, figures(self.model.link()))
    }
}

pub(super) fn preset_names() -> String {
    PRESETS.map(|(name, _)| name).join(", ")
}

pub(super) fn figures(link: &Link) -> String {
    let mut parts = vec![format!("latency {}", show_seconds(link.latency_s))];
    let rates = [
        ("bandwidth", link.s_per_byte),
        ("copies", link.copy_s_per_byte),
        ("folds", link.fold_s_per_byte),
    ];
    if link.overhead_s > 0.0 {
        parts.push(format!("overhead {}", show_seconds(link.overhead_s)));
    }
    if link.long_latency_s > 0.0 {
        let (more, bytes) = (show_seconds(link.long_latency_s), link.short_bytes);
        parts.push(format!("{more} more beyond {bytes} B"));
    }
    for (name, s_per_byte) in rates {
        if s_per_byte > 0.0 {
            parts.push(format!("{name} {}", show_bandwidth(s_per_byte)));
        }
    }
    parts.join(", ")
}

pub(super) fn write(path: &Path, links: Vec<FittedLink>) -> anyhow::Result<()> {
    crate::save_json(path, &LinkFile { links })
}

/// The link of the transport that was fitted to the same operation if there is one, and to the nearest number of ranks.
fn choose(
    mut links: Vec<FittedLink>,
    transport: Option<&str>,
    operation: Operation,
    world_size: WorldSize,
) -> anyhow::Result<FittedLink> {
    let mut transports: Vec<&str> = links.iter().map(|link| link.transport.as_str()).collect();
    transports.sort_unstable();
    transports.dedup();
    let Some(wanted) = transport.or(transports.first().copied()).map(str::to_owned) else {
        bail!("there are none");
    };
    if !transports.contains(&wanted.as_str()) || (transport.is_none() && transports.len() > 1) {
        let known = transports.join(", ");
        bail!("say which transport with FILE:TRANSPORT; there are {known}");
    }
    links.retain(|link| link.transport == wanted);
    let distance = |link: &FittedLink| {
        let ratio = f64::from(link.ranks.max(1)) / f64::from(world_size.get());
        (link.operation != operation.name(), ratio.ln().abs())
    };
    links
        .into_iter()
        .min_by(|a, b| {
            let ((other_a, far_a), (other_b, far_b)) = (distance(a), distance(b));
            other_a.cmp(&other_b).then(far_a.total_cmp(&far_b))
        })
        .context("there are none")
}

fn parameters(text: &str) -> Result<Link, String> {
    let mut link = Link::default();
    let mut given = Vec::new();
    for part in text.split(',') {
        let (key, value) =
            part.split_once('=').ok_or_else(|| format!("`{part}` is not KEY=VALUE"))?;
        let inverse = |value| bandwidth(value).map(|rate| 1.0 / rate);
        match key {
            "alpha" | "latency" => link.latency_s = seconds(value)?,
            "bandwidth" => link.s_per_byte = inverse(value)?,
            "overhead" => link.overhead_s = seconds(value)?,
            "copy" => link.copy_s_per_byte = inverse(value)?,
            "fold" => link.fold_s_per_byte = inverse(value)?,
            _ => {
                return Err(format!(
                    "unknown `{key}`; a link has alpha, bandwidth, overhead, copy and fold"
                ));
            }
        }
        if given.contains(&key) {
            return Err(format!("`{key}` is given twice"));
        }
        given.push(key);
    }
    if !given.iter().any(|key| matches!(*key, "alpha" | "latency")) {
        return Err("a link needs alpha=TIME, such as alpha=3us".to_owned());
    }
    if !given.iter().any(|key| matches!(*key, "bandwidth" | "copy")) {
        return Err("a link needs bandwidth=RATE, such as bandwidth=10GB/s".to_owned());
    }
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(text: &str) -> Link {
        match text.parse().unwrap() {
            LinkSource::Known { link, .. } => link,
            other => panic!("{text} is {other:?}"),
        }
    }

    #[test]
    fn links_are_named_or_given_by_their_figures() {
        assert_eq!(known("net-400g"), Link::new(14e-6, 2e-11));
        let link = known("alpha=2us,bandwidth=1GB/s,overhead=1us,copy=4GB/s,fold=2GB/s");
        let expected = Link {
            latency_s: 2e-6,
            s_per_byte: 1e-9,
            overhead_s: 1e-6,
            copy_s_per_byte: 0.25e-9,
            fold_s_per_byte: 0.5e-9,
            ..Link::default()
        };
        assert_eq!(link, expected);
        let words = "latency 2 us, overhead 1 us, bandwidth 1 GB/s, copies 4 GB/s, folds 2 GB/s";
        assert_eq!(figures(&link), words);
        let stepped = Link { short_bytes: 16, long_latency_s: 1e-7, ..Link::new(2e-6, 1e-9) };
        let words = "latency 2 us, 100 ns more beyond 16 B, bandwidth 1 GB/s";
        assert_eq!(figures(&stepped), words);
    }

    #[test]
    fn what_is_wrong_with_a_link_is_said() {
        for (text, expected) in [
            ("nvlink", "use one of nvlink-h100"),
            ("alpha=2us", "needs bandwidth"),
            ("bandwidth=2GB/s", "needs alpha"),
            ("alpha=2us,beta=3", "unknown `beta`"),
            ("alpha=2us,bandwidth=1G,alpha=3us", "given twice"),
            ("alpha=2,bandwidth=1G", "is not a time"),
            ("alpha=2us,bandwidth", "is not KEY=VALUE"),
        ] {
            let error = text.parse::<LinkSource>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    fn fitted(transport: &str, ranks: u32, operation: &str) -> FittedLink {
        FittedLink {
            transport: transport.to_owned(),
            ranks,
            operation: operation.to_owned(),
            model: LinkModel::uniform(Link::new(f64::from(ranks), 0.0)),
        }
    }

    #[test]
    fn of_fitted_links_the_nearest_is_taken() {
        let links = vec![
            fitted("shm", 2, "all_reduce"),
            fitted("shm", 8, "all_reduce"),
            fitted("shm", 4, "broadcast"),
            fitted("tcp", 4, "all_reduce"),
        ];
        let chosen = |transport, operation, ranks| {
            let world_size = WorldSize::new(ranks).unwrap();
            choose(links.clone(), transport, operation, world_size)
                .map(|link| (link.ranks, link.operation))
                .map_err(|error| error.to_string())
        };
        let all_reduce = |ranks| Ok((ranks, "all_reduce".to_owned()));
        assert_eq!(chosen(Some("shm"), Operation::AllReduce, 3), all_reduce(2));
        assert_eq!(chosen(Some("shm"), Operation::AllReduce, 64), all_reduce(8));
        assert_eq!(chosen(Some("shm"), Operation::AllGather, 8), all_reduce(8));
        assert_eq!(chosen(Some("tcp"), Operation::Broadcast, 2), all_reduce(4));
        let broadcast = Ok((4, "broadcast".to_owned()));
        assert_eq!(chosen(Some("shm"), Operation::Broadcast, 64), broadcast);
        for transport in [None, Some("ib")] {
            let error = chosen(transport, Operation::AllReduce, 2).unwrap_err();
            assert!(error.contains("there are shm, tcp"), "{error}");
        }
    }
}
