//! How the states of a training lie over the ranks.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use self::Sharding::{Replicated, Sharded};
use crate::UnknownName;

/// How one state of the parameters lies over the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharding {
    /// Every rank has all of it.
    #[default]
    Replicated,
    /// Every rank has a share.
    Sharded,
}

/// What a rank's share of a sharded state is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardUnit {
    /// A run of rows of each parameter: the most even, for optimizers that treat each element by itself.
    #[default]
    Rows,
    /// Some parameters in full, for optimizers that look at all elements of one: Muon, LAMB, Adafactor.
    Parameters,
}

/// Among which ranks a state is sharded. Each such group of ranks has all of it, as the others have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardGroup {
    /// All ranks of the group.
    #[default]
    All,
    /// Those of one host, so that parameters are gathered within hosts.
    Host,
    /// Groups of this many consecutive ranks.
    Ranks(NonZeroU32),
}

/// How parameters, gradients and the optimizer's state lie over the ranks.
///
/// ```
/// # mod bonfire { pub mod ddp { pub use bonfire_plan::*; } }
/// use bonfire::ddp::{ShardGroup, Placement, Sharding};
///
/// assert_eq!("zero1".parse(), Ok(Placement::zero1()));
/// assert_eq!(Placement::zero3().parameters, Sharding::Sharded);
/// assert_eq!(Placement::default().to_string(), "replicated");
/// assert_eq!("zero3@host".parse(), Ok(Placement::zero3().among(ShardGroup::Host)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub struct Placement {
    /// The values of the parameters, between steps.
    pub parameters: Sharding,
    /// The averaged gradients of the parameters.
    pub gradients: Sharding,
    /// What the optimizer keeps for them.
    pub optimizer: Sharding,
    /// What the shares are made of.
    pub unit: ShardUnit,
    /// Who has the shares of one copy.
    pub among: ShardGroup,
}

impl Placement {
    /// Every rank has everything: plain data parallelism.
    pub const fn replicated() -> Self {
        Self::of([Replicated; 3])
    }

    /// The optimizer's state is sharded: ZeRO stage 1.
    pub const fn zero1() -> Self {
        Self::of([Replicated, Replicated, Sharded])
    }

    /// Gradients are sharded, too: ZeRO stage 2.
    pub const fn zero2() -> Self {
        Self::of([Replicated, Sharded, Sharded])
    }

    /// Everything is sharded: ZeRO stage 3, what PyTorch calls fully sharded data parallelism.
    pub const fn zero3() -> Self {
        Self::of([Sharded; 3])
    }

    /// The four that differ in what is sharded, from the most memory to the least.
    pub const fn presets() -> [Self; 4] {
        let [replicated, zero1, zero2, zero3, ..] = Self::NAMED;
        [replicated.1, zero1.1, zero2.1, zero3.1]
    }

    const fn of([parameters, gradients, optimizer]: [Sharding; 3]) -> Self {
        Self { parameters, gradients, optimizer, unit: ShardUnit::Rows, among: ShardGroup::All }
    }

    /// The same, but each parameter has one rank that has all of its sharded states: `zero1-whole` and
    /// `zero2-whole`. Not for sharded parameters, whose values each rank needs a share of.
    ///
    /// The state of a single parameter is not divided, so this is as even as the sizes of the parameters allow.
    #[must_use]
    pub const fn of_whole_parameters(self) -> Self {
        Self { unit: ShardUnit::Parameters, ..self }
    }

    /// The same within groups of ranks, and replicated over them: `zero3@host` is what PyTorch calls hybrid sharding.
    #[must_use]
    pub const fn among(self, among: ShardGroup) -> Self {
        Self { among, ..self }
    }

    /// Whether any state is sharded.
    pub const fn is_sharded(self) -> bool {
        matches!(self.optimizer, Sharded)
    }

    const NAMED: [(&str, Self); 6] = [
        ("replicated", Self::replicated()),
        ("zero1", Self::zero1()),
        ("zero2", Self::zero2()),
        ("zero3", Self::zero3()),
        ("zero1-whole", Self::zero1().of_whole_parameters()),
        ("zero2-whole", Self::zero2().of_whole_parameters()),
    ];
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.among(ShardGroup::All);
        let named = Self::NAMED.iter().find(|(_, placement)| *placement == all);
        match named {
            Some((name, _)) => f.write_str(name)?,
            None => write!(f, "{all:?}")?,
        }
        match self.among {
            ShardGroup::All => Ok(()),
            ShardGroup::Host => f.write_str("@host"),
            ShardGroup::Ranks(ranks) => write!(f, "@{ranks}"),
        }
    }
}

impl FromStr for Placement {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let unknown = || {
            let names = Self::NAMED.into_iter().map(|(known, _)| known);
            let names = names.chain(["hybrid", "one of these with @host or @N behind it"]);
            UnknownName::new("placement", name, names)
        };
        let (all, among) = match name.split_once('@') {
            None if name == "hybrid" => ("zero3", ShardGroup::Host),
            None => (name, ShardGroup::All),
            Some((all, "host")) => (all, ShardGroup::Host),
            Some((all, ranks)) => {
                let ranks = ranks.parse().map_err(|_| unknown())?;
                (all, ShardGroup::Ranks(ranks))
            }
        };
        let named = Self::NAMED.iter().find(|(known, _)| *known == all);
        let (_, placement) = named.ok_or_else(unknown)?;
        Ok(placement.among(among))
    }
}

impl TryFrom<String> for Placement {
    type Error = UnknownName;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}

impl From<Placement> for String {
    fn from(placement: Placement) -> Self {
        placement.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_have_names() {
        for (name, placement) in Placement::NAMED {
            assert_eq!(placement.to_string(), name);
            assert_eq!(name.parse(), Ok(placement));
            let two = placement.among(ShardGroup::Ranks(NonZeroU32::new(2).unwrap()));
            for (among, name) in [
                (two, format!("{name}@2")),
                (placement.among(ShardGroup::Host), format!("{name}@host")),
            ] {
                assert_eq!(among.to_string(), name);
                assert_eq!(name.parse(), Ok(among));
            }
        }
        assert_eq!("hybrid".parse(), "zero3@host".parse::<Placement>());
        assert!("zero3@0".parse::<Placement>().is_err());
        let error = "zero4".parse::<Placement>().unwrap_err().to_string();
        assert!(error.contains("zero4") && error.contains("zero3"), "{error}");
    }
}
