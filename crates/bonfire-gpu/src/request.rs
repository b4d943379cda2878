//! What every group of GPUs asks of an operation before it begins.

pub(crate) mod elements;

use std::fmt;

use bonfire_cuda::Span;
use bonfire_plan::{Collective, PlanError, Rank, ReduceOp, WorldSize};

use crate::error::Result;
use crate::request::elements::Elements;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) collective: Collective,
    /// How values are combined, where they are.
    pub(crate) reduce: Option<ReduceOp>,
    pub(crate) elements: &'a Elements,
}

impl<'a> Request<'a> {
    pub(crate) fn of(
        collective: Collective,
        reduce: Option<ReduceOp>,
        elements: &'a Elements,
    ) -> Self {
        Self { collective, reduce, elements }
    }

    /// Checks that ranks of a group of this size can do it with buffers of `bytes` bytes.
    ///
    /// # Errors
    /// [`TooSmall`](crate::CudaGroupError::TooSmall) and [`Usage`](crate::CudaGroupError::Usage): the group continues.
    pub(crate) fn check(&self, world_size: WorldSize, bytes: usize) -> Result<()> {
        let (collective, elements) = (self.collective, self.elements);
        elements.fit(bytes)?;
        if let Some(reduce) = self.reduce {
            reduce.require(elements.dtype)?;
        }
        if let Some(root) = collective.root().filter(|&root| !world_size.contains(root)) {
            return Err(PlanError::RootOutOfRange { root, world_size }.into());
        }
        let ranks = world_size.len();
        match collective {
            Collective::AllToAll => equal_blocks(elements.count() * ranks, ranks * ranks),
            Collective::Transfer { source, target } => {
                pair(collective, [source, target], world_size)
            }
            Collective::Exchange { first, second } => {
                pair(collective, [first, second], world_size)?;
                equal_blocks(elements.count(), 2)
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (collective, elements) = (self.collective, self.elements);
        write!(f, "{collective} of {} x {}", elements.dtype, elements.count())
    }
}

/// What two ranks do that exchange: the lower is named first.
pub(crate) fn exchange_of(one: Rank, other: Rank) -> Collective {
    Collective::Exchange { first: one.min(other), second: one.max(other) }
}

/// Asserts that an all-to-all goes from one buffer to another: blocks would be overwritten before they are read.
#[track_caller]
pub(crate) fn assert_apart(input: &Span, output: &Span) {
    assert!(input.address() != output.address(), "an all-to-all goes from one buffer to another");
}

fn equal_blocks(count: usize, blocks: usize) -> Result<()> {
    if count.is_multiple_of(blocks) {
        return Ok(());
    }
    Err(PlanError::UnequalBlocks { count, blocks }.into())
}

fn pair(collective: Collective, [one, other]: [Rank; 2], world_size: WorldSize) -> Result<()> {
    if one != other && world_size.contains(one) && world_size.contains(other) {
        return Ok(());
    }
    Err(PlanError::NotAPair { collective }.into())
}

#[cfg(test)]
mod tests {
    use bonfire_plan::DType;

    use super::*;
    use crate::error::CudaGroupError;

    const BYTES: usize = 48;

    /// Of elements that are in the buffer, by three ranks.
    fn check(collective: Collective, count: usize) -> Result<()> {
        let elements = Elements::first(DType::F32, count);
        let request = Request { collective, reduce: None, elements: &elements };
        request.check(WorldSize::new(3).unwrap(), BYTES)
    }

    fn usage(result: Result<()>) -> PlanError {
        match result {
            Err(CudaGroupError::Usage(error)) => error,
            other => panic!("expected an error of the caller, got {other:?}"),
        }
    }

    fn transfer(source: u32, target: u32) -> Collective {
        Collective::Transfer { source: Rank::new(source), target: Rank::new(target) }
    }

    #[test]
    fn a_root_is_one_of_the_ranks() {
        let root = Rank::new(3);
        for collective in [
            Collective::Broadcast { root },
            Collective::Reduce { root },
            Collective::Gather { root },
            Collective::Scatter { root },
        ] {
            let error = usage(check(collective, 4));
            assert!(matches!(error, PlanError::RootOutOfRange { .. }), "{error}");
        }
        let root = Rank::new(2);
        assert!(check(Collective::Gather { root }, 4).is_ok());
    }

    #[test]
    fn a_pair_is_two_ranks_of_the_group() {
        assert!(check(transfer(2, 0), 5).is_ok());
        let exchange = |one, other| exchange_of(Rank::new(one), Rank::new(other));
        assert!(check(exchange(2, 0), 4).is_ok());
        for collective in
            [transfer(1, 1), transfer(0, 3), transfer(3, 0), exchange(1, 1), exchange(0, 3)]
        {
            let error = usage(check(collective, 4));
            assert!(matches!(error, PlanError::NotAPair { .. }), "{collective}: {error}");
        }
    }

    #[test]
    fn blocks_are_equal() {
        let unequal = |result| matches!(usage(result), PlanError::UnequalBlocks { .. });
        assert!(check(Collective::AllToAll, 6).is_ok());
        assert!(check(Collective::AllToAll, 0).is_ok());
        assert!(unequal(check(Collective::AllToAll, 7)));
        assert!(unequal(check(exchange_of(Rank::new(0), Rank::new(1)), 5)));
    }

    #[test]
    fn elements_are_in_the_buffer_and_have_the_reduction() {
        let too_small = check(Collective::AllReduce, BYTES / 4 + 1);
        assert!(matches!(too_small, Err(CudaGroupError::TooSmall { .. })));
        let elements = Elements::first(DType::F32, 1);
        let request = Request {
            collective: Collective::AllReduce,
            reduce: Some(ReduceOp::Xor),
            elements: &elements,
        };
        let error = usage(request.check(WorldSize::new(2).unwrap(), BYTES));
        assert!(matches!(error, PlanError::UnsupportedReduce { .. }), "{error}");
    }
}
