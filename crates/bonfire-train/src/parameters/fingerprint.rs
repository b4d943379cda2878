//! Compares the models and configurations of all ranks before anything is sent.
//!
//! Every rank gets the digests of all, and the descriptions of the first two that differ, so every rank has the same
//! result.

use std::fmt;

use bonfire_collective::{ProcessGroup, Rank};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::error::Difference;
use crate::{DdpConfig, TrainError};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: String,
    pub(crate) trainable: bool,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.trainable { "trained" } else { "frozen" };
        write!(f, "{} {:?} and {state}", self.dtype, self.shape)
    }
}

/// The values that must be the same on all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fingerprint {
    pub(crate) config: DdpConfig,
    pub(crate) entries: Vec<Entry>,
}

/// Compares this rank's fingerprint with those of all ranks. Digests are sent first: the fingerprints of two ranks
/// that differ follow only if there are such ranks.
#[track_caller]
pub(crate) fn verify(own: &Fingerprint, group: &ProcessGroup) -> Result<(), TrainError> {
    let bytes = serde_json::to_vec(own).expect("numbers and strings can always be written");
    let digests = group.all_gather_bytes(digest(&SHA256, &bytes).as_ref())?;
    let Some(other) = digests.iter().position(|digest| *digest != digests[0]) else {
        return Ok(());
    };
    let (reference, other) = (Rank::new(0), Rank::new(other as u32));
    let shown = if [reference, other].contains(&group.rank()) { &bytes[..] } else { &[] };
    let shown = group.all_gather_bytes(shown)?;
    let read = |rank: Rank| -> Result<Fingerprint, TrainError> {
        let read = serde_json::from_slice(&shown[rank.index()]);
        read.map_err(|cause| TrainError::OtherProgram { rank, cause: cause.to_string() })
    };
    match first_difference(reference, &read(reference)?, other, &read(other)?) {
        Some(difference) => Err(difference.into()),
        None => Ok(()),
    }
}

fn first_difference(
    rank: Rank,
    here: &Fingerprint,
    other_rank: Rank,
    there: &Fingerprint,
) -> Option<Difference> {
    let difference = |subject: String, found: Option<String>, other_found: Option<String>| {
        Some(Difference { subject, rank, found, other_rank, other_found })
    };
    if here.config != there.config {
        return difference(
            "the DdpConfig".to_owned(),
            Some(format!("{:?}", here.config)),
            Some(format!("{:?}", there.config)),
        );
    }
    let count = here.entries.len().max(there.entries.len());
    for index in 0..count {
        let (own, other) = (here.entries.get(index), there.entries.get(index));
        match (own, other) {
            (Some(own), Some(other)) if own == other => {}
            (Some(own), Some(other)) if own.name == other.name => {
                return difference(
                    format!("parameter {}", own.name),
                    Some(own.to_string()),
                    Some(other.to_string()),
                );
            }
            // The lists go apart here: name what one side lacks.
            (Some(own), _) if !there.has(&own.name) => {
                let subject = format!("parameter {}", own.name);
                return difference(subject, Some(own.to_string()), None);
            }
            (_, Some(other)) if !here.has(&other.name) => {
                let subject = format!("parameter {}", other.name);
                return difference(subject, None, Some(other.to_string()));
            }
            (own, other) => {
                return difference(
                    format!("parameter number {index}"),
                    own.map(|entry| entry.name.clone()),
                    other.map(|entry| entry.name.clone()),
                );
            }
        }
    }
    None
}

impl Fingerprint {
    fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.name == name)
    }
}

#[cfg(test)]
mod tests {
    use bonfire_collective::GroupOptions;
    use bonfire_testkit::local;

    use super::*;

    fn entry(name: &str, shape: &[usize]) -> Entry {
        Entry {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype: "f32".to_owned(),
            trainable: true,
        }
    }

    fn fingerprint(entries: &[Entry]) -> Fingerprint {
        Fingerprint { config: DdpConfig::default(), entries: entries.to_vec() }
    }

    fn message(here: &[Entry], there: &[Entry]) -> Option<String> {
        let (here, there) = (fingerprint(here), fingerprint(there));
        first_difference(Rank::new(0), &here, Rank::new(3), &there).map(|d| d.to_string())
    }

    #[test]
    fn equal_models_have_no_difference() {
        assert_eq!(message(&[entry("a", &[2])], &[entry("a", &[2])]), None);
    }

    #[test]
    fn a_difference_names_the_parameter_and_both_ranks() {
        let here = [entry("a", &[2]), entry("b.weight", &[2, 3])];
        let there = [entry("a", &[2]), entry("b.weight", &[2, 4])];
        assert!(message(&here, &there).unwrap().starts_with(
            "parameter b.weight is f32 [2, 3] and trained on rank 0 but f32 [2, 4] and trained on \
             rank 3; "
        ));
    }

    #[test]
    fn a_missing_parameter_is_named_on_either_side() {
        let (short, long) = ([entry("a", &[2])], [entry("x", &[1]), entry("a", &[2])]);
        let here = message(&short, &long).unwrap();
        assert!(here.contains("parameter x is missing on rank 0"), "{here}");
        let there = message(&long, &short).unwrap();
        assert!(there.contains("missing on rank 3"), "{there}");
    }

    #[test]
    fn the_same_parameters_in_another_order_differ() {
        let (a, b) = (entry("a", &[2]), entry("b", &[2]));
        let found = message(&[a.clone(), b.clone()], &[b, a]).unwrap();
        assert!(found.contains("parameter number 0 is a on rank 0 but b on rank 3"), "{found}");
    }

    #[test]
    fn the_configuration_counts() {
        let here = fingerprint(&[]);
        let mut there = fingerprint(&[]);
        there.config.bucket_bytes_max = 1;
        let found = first_difference(Rank::new(0), &here, Rank::new(1), &there).unwrap();
        assert_eq!(found.subject, "the DdpConfig");
    }

    /// What a rank receives is much less than a list of parameters.
    #[test]
    fn equal_models_are_compared_by_digests() {
        let entries: Vec<_> = (0..1000).map(|i| entry(&format!("{i}"), &[2])).collect();
        let received = local(3, GroupOptions::default(), |group| {
            // The first operations measure the links.
            verify(&fingerprint(&[]), &group).unwrap();
            let before = group.traffic().payload_bytes_received;
            verify(&fingerprint(&entries), &group).unwrap();
            group.traffic().payload_bytes_received - before
        });
        assert!(received.iter().all(|&bytes| bytes < 1000), "{received:?}");
    }
}
