//! Tensors as messages between two ranks.

use bonfire_collective::{CollectiveError, ProcessGroup, Rank, Work};
use burn::tensor::TensorData;

use super::output::{Extent, Layout};

/// Work of both ends, from one line: programs may have call sites compared.
pub(super) fn background(
    pair: &ProcessGroup,
    values: Vec<TensorData>,
    work: impl FnOnce(&ProcessGroup, &mut Vec<TensorData>) -> Result<(), CollectiveError>
    + Send
    + 'static,
) -> Work<Vec<TensorData>> {
    pair.background(values, work)
}

pub(super) fn send_layout(
    pair: &ProcessGroup,
    target: Rank,
    layout: &Layout,
) -> Result<(), CollectiveError> {
    let words = layout.to_words();
    pair.send(&[words.len() as u64], target)?;
    pair.send(&words, target)
}

pub(super) fn receive_layout(pair: &ProcessGroup, source: Rank) -> Result<Layout, CollectiveError> {
    let mut len = [0_u64];
    pair.recv(&mut len, source)?;
    let mut words = vec![0_u64; len[0] as usize];
    pair.recv(&mut words, source)?;
    Ok(Layout::of_words(&words))
}

pub(super) fn send(
    pair: &ProcessGroup,
    target: Rank,
    values: &[TensorData],
) -> Result<(), CollectiveError> {
    let mut values = values.iter();
    values.try_for_each(|values| pair.send(values.as_bytes(), target))
}

pub(super) fn receive(
    pair: &ProcessGroup,
    source: Rank,
    layout: &Layout,
) -> Result<Vec<TensorData>, CollectiveError> {
    let receive = |Extent { dtype, shape }: &Extent| {
        let empty = TensorData::full_dtype(shape.clone(), 0.0, *dtype);
        // Flex32 is f32 in memory, and would come out as that.
        let (mut bytes, shape, _) = empty.into_parts();
        pair.recv(&mut bytes, source)?;
        Ok(TensorData::from_bytes(bytes, shape, *dtype))
    };
    layout.0.iter().map(receive).collect()
}
