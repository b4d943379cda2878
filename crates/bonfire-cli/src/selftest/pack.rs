//! Many tensors through one bucket: packed, reduced and unpacked, as gradients are.

use anyhow::ensure;
use bonfire_collective::{DType, ReduceOp};
use bonfire_gpu::{CudaBuffer, CudaGroup, CudaOptions, DeviceRegion, Elements, Nvrtc};
use bonfire_kernels::launch::stream::{Direction, PackKernel, PackTable, Piece};

use super::SelftestArgs;
use super::ranks::on_threads;
use super::value::{samples, scramble};

const TENSORS: [usize; 3] = [150, 400, 1000];

const MODEL_BYTES: usize = 128 << 20;
const QUICK_BYTES: usize = 4 << 20;

/// Tensors and their slots begin at multiples of this, as CubeCL and the buckets have it.
const ALIGN_BYTES: usize = 256;

/// Elements of the tensors of a model: seeded, every third one large. Large ones are matrices of very
/// different sizes, the others biases and scales.
fn lengths(tensors: usize, elems: usize) -> Vec<usize> {
    let mixed = |index: usize| scramble((tensors as u64) << 32 | index as u64);
    let is_large = |index: &usize| index.is_multiple_of(3);
    let small = |index: usize| 64 + (mixed(index) % 4033) as usize;
    let rest: usize = (0..tensors).filter(|index| !is_large(index)).map(small).sum();
    // From one to 64 shares each.
    let shares = |index: usize| 1 + mixed(index) % 64;
    let all_shares: u64 = (0..tensors).filter(is_large).map(shares).sum();
    let large = |index: usize| {
        let left = elems.saturating_sub(rest) as u64;
        (left * shares(index) / all_shares).max(1) as usize
    };
    let length = |index| {
        if is_large(&index) { large(index) } else { small(index) }
    };
    (0..tensors).map(length).collect()
}

/// Tensors of one rank in memory of their own, and a bucket with a slot for each.
struct Model<'g> {
    group: &'g CudaGroup,
    kernel: PackKernel,
    packing: PackTable,
    unpacking: PackTable,
    pieces: Vec<Piece>,
    bucket: CudaBuffer,
    elements: Elements,
}

impl<'g> Model<'g> {
    fn new(group: &'g CudaGroup, lengths: &[usize]) -> anyhow::Result<Self> {
        let context = group.context();
        let bytes: Vec<usize> = lengths.iter().map(|elems| elems * size_of::<f32>()).collect();
        let strides = bytes.iter().map(|bytes| bytes.next_multiple_of(ALIGN_BYTES));
        let total: usize = strides.clone().sum();
        let bucket = group.allocate(total)?;
        let memory = DeviceRegion::allocate(context, total)?.span();
        let mut pieces = Vec::new();
        let mut start = 0;
        for (&bytes, stride) in bytes.iter().zip(strides) {
            // In memory they lie in the opposite order, so that no two neighbours are one copy.
            let end = total - start;
            let begin = end - stride;
            pieces.push(Piece {
                tensor: memory.part(begin..begin + bytes)?,
                slot: bucket.span().part(start..start + bytes)?,
            });
            start += stride;
        }
        group.synchronize()?;
        let model = Self {
            group,
            kernel: PackKernel::load(context, Nvrtc::load()?, size_of::<f32>())?,
            packing: PackTable::new(context, bytes.iter().copied())?,
            unpacking: PackTable::new(context, bytes.iter().copied())?,
            pieces,
            elements: Elements::first(DType::F32, total / size_of::<f32>()),
            bucket,
        };
        // Code is loaded before any stream waits for another rank.
        group.process_group().barrier()?;
        Ok(model)
    }

    fn average(&mut self) -> anyhow::Result<()> {
        let stream = self.group.stream();
        let pieces = &self.pieces;
        self.kernel.launch(&stream, &mut self.packing, pieces, Direction::Pack)?;
        self.group.all_reduce(&self.bucket, &self.elements, ReduceOp::Mean)?;
        Ok(self.kernel.launch(&stream, &mut self.unpacking, pieces, Direction::Unpack)?)
    }

    /// Checks that the tensors end as the CPU has them, bit for bit.
    fn check(&mut self) -> anyhow::Result<()> {
        let rank = self.group.rank();
        let stream = self.group.stream();
        let process = self.group.process_group().clone();
        let mut brought: Vec<Vec<f32>> = Vec::new();
        for (case, piece) in self.pieces.iter().enumerate() {
            let count = piece.tensor.len() / size_of::<f32>();
            let values = samples(rank.get(), case as u64, count);
            stream.write(&piece.tensor, bytemuck::cast_slice(&values))?;
            brought.push(values);
        }
        self.average()?;
        self.group.synchronize()?;
        for (number, (piece, mut expected)) in self.pieces.iter().zip(brought).enumerate() {
            process.all_reduce(&mut expected, ReduceOp::Mean)?;
            let mut found = vec![0.0_f32; piece.tensor.len() / size_of::<f32>()];
            self.group.stream().read(&piece.tensor, bytemuck::cast_slice_mut(&mut found))?;
            let count = expected.len();
            ensure!(found.len() == count, "tensor {number} has lost elements");
            let mut pairs = found.iter().zip(&expected);
            ensure!(
                pairs.all(|(a, b)| a.to_bits() == b.to_bits()),
                "rank {rank}: tensor {number} of {count} is not as on the CPU"
            );
        }
        Ok(())
    }
}

pub(super) fn check(args: &SelftestArgs) -> anyhow::Result<()> {
    let bytes = if args.quick { QUICK_BYTES } else { MODEL_BYTES };
    for &ranks in &args.ranks {
        for tensors in TENSORS {
            let lengths = lengths(tensors, bytes / size_of::<f32>());
            on_threads(ranks, &CudaOptions::default(), |group| {
                Model::new(&group, &lengths)?.check()
            })?;
        }
        println!("{ranks} ranks, {TENSORS:?} tensors: all bits as on the CPU");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_tensors_of_all_sizes_that_fill_it() {
        let elems = MODEL_BYTES / 4;
        for tensors in TENSORS {
            let lengths = lengths(tensors, elems);
            let total: usize = lengths.iter().sum();
            assert_eq!(lengths.len(), tensors);
            assert!(total <= elems && total > elems - tensors, "{total} of {elems}");
            let small = lengths.iter().filter(|length| **length < 4097).count();
            assert!(small * 3 >= tensors * 2 - 3, "{small} of {tensors} are small");
            assert!(lengths.iter().max() > Some(&(elems / tensors)));
            assert!(lengths.iter().all(|length| *length > 0));
        }
    }
}
