//! Where the elements that a plan speaks of lie in this rank's memory.

use bonfire_plan::{Collective, ElemRange};

#[derive(Debug)]
pub(crate) enum Memory<'a, T> {
    InPlace(&'a mut [T]),
    /// What is sent is only read; what is received goes elsewhere.
    Apart {
        input: &'a [T],
        output: &'a mut [T],
    },
}

/// The ranges of the plan's space of elements that a rank brings and ends with. A buffer holds them
/// one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Extents {
    pub(crate) input: Box<[ElemRange]>,
    pub(crate) output: Box<[ElemRange]>,
    /// What a buffer that is both holds, to read and to write.
    in_place: [Role; 2],
}

#[derive(Clone, Copy, Debug)]
enum Role {
    Input,
    Output,
}

impl Extents {
    pub(crate) fn new(
        collective: Collective,
        input: Vec<ElemRange>,
        output: Vec<ElemRange>,
    ) -> Self {
        let in_place = if collective == Collective::AllToAll {
            // Equal blocks are sent before they are overwritten, so both lie in one buffer.
            [Role::Input, Role::Output]
        } else if total(&input) >= total(&output) {
            [Role::Input; 2]
        } else {
            [Role::Output; 2]
        };
        Self { input: input.into(), output: output.into(), in_place }
    }

    fn of(&self, role: Role) -> &[ElemRange] {
        match role {
            Role::Input => &self.input,
            Role::Output => &self.output,
        }
    }
}

/// A rank's memory, addressed as the plan does.
#[derive(Debug)]
pub(crate) struct Space<'a, 'p, T> {
    memory: Memory<'a, T>,
    extents: &'p Extents,
}

impl<'a, 'p, T> Space<'a, 'p, T> {
    /// Panics if a buffer is not as long as the plan says.
    pub(crate) fn new(memory: Memory<'a, T>, extents: &'p Extents) -> Self {
        match &memory {
            Memory::InPlace(data) => {
                for role in extents.in_place {
                    assert_eq!(data.len(), total(extents.of(role)), "buffer and plan differ");
                }
            }
            Memory::Apart { input, output } => {
                assert_eq!(input.len(), total(&extents.input), "input and plan differ");
                assert_eq!(output.len(), total(&extents.output), "output and plan differ");
            }
        }
        Self { memory, extents }
    }

    pub(crate) fn source(&self, range: ElemRange) -> &[T] {
        match &self.memory {
            Memory::InPlace(data) => {
                let held = self.extents.of(self.extents.in_place[0]);
                &data[place(held, range).expect("the plan reads what the rank has")]
            }
            Memory::Apart { input, output } => match place(&self.extents.input, range) {
                Some(place) => &input[place],
                None => {
                    let place = place(&self.extents.output, range);
                    &output[place.expect("the plan reads what the rank has")]
                }
            },
        }
    }

    pub(crate) fn target(&mut self, range: ElemRange) -> &mut [T] {
        let (data, held): (&mut [T], _) = match &mut self.memory {
            Memory::InPlace(data) => (data, self.extents.of(self.extents.in_place[1])),
            Memory::Apart { output, .. } => (output, &*self.extents.output),
        };
        &mut data[place(held, range).expect("the plan writes what the rank has")]
    }
}

fn total(ranges: &[ElemRange]) -> usize {
    ranges.iter().map(|range| range.len()).sum()
}

/// Where `range` is in a buffer that holds `held`.
fn place(held: &[ElemRange], range: ElemRange) -> Option<std::ops::Range<usize>> {
    if range.is_empty() {
        return Some(0..0);
    }
    let mut before = 0;
    for part in held {
        if part.start() <= range.start() && range.end() <= part.end() {
            let start = before + range.start() - part.start();
            return Some(start..start + range.len());
        }
        before += part.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(pairs: &[(usize, usize)]) -> Vec<ElemRange> {
        pairs.iter().map(|&(start, end)| ElemRange::new(start, end)).collect()
    }

    #[test]
    fn blocks_lie_one_after_the_other() {
        // Rank 1 of 2 in an all-to-all of blocks of 3.
        let input = ranges(&[(6, 9), (9, 12)]);
        let output = ranges(&[(3, 6), (9, 12)]);
        let extents = Extents::new(Collective::AllToAll, input, output);
        let mut data = [10, 11, 12, 13, 14, 15];
        let mut space = Space::new(Memory::InPlace(&mut data), &extents);
        assert_eq!(space.source(ElemRange::new(7, 9)), [11, 12]);
        space.target(ElemRange::new(3, 5)).copy_from_slice(&[1, 2]);
        assert_eq!(data, [1, 2, 12, 13, 14, 15]);
    }

    #[test]
    fn the_larger_extent_is_the_working_place() {
        let extents = Extents::new(Collective::AllGather, ranges(&[(2, 4)]), ranges(&[(0, 6)]));
        let mut data = [0, 1, 2, 3, 4, 5];
        let space = Space::new(Memory::InPlace(&mut data), &extents);
        assert_eq!(space.source(ElemRange::new(2, 4)), [2, 3]);
        assert_eq!(space.source(ElemRange::new(5, 6)), [5]);
    }

    #[test]
    fn what_was_received_is_read_from_the_output() {
        let extents = Extents::new(Collective::AllGather, ranges(&[(2, 4)]), ranges(&[(0, 6)]));
        let (input, mut output) = ([7, 8], [0, 1, 2, 3, 4, 5]);
        let memory = Memory::Apart { input: &input, output: &mut output };
        let space = Space::new(memory, &extents);
        assert_eq!(space.source(ElemRange::new(2, 4)), [7, 8]);
        assert_eq!(space.source(ElemRange::new(4, 6)), [4, 5]);
    }

    #[test]
    #[should_panic(expected = "the plan writes what the rank has")]
    fn a_range_that_the_rank_has_not_is_a_bug() {
        let extents = Extents::new(Collective::Barrier, ranges(&[]), ranges(&[(4, 6)]));
        let mut data = [0, 1];
        Space::new(Memory::InPlace(&mut data), &extents).target(ElemRange::new(3, 5));
    }
}
