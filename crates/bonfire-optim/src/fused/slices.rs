//! An optimizer's step over slices of host memory: each element of parameter, gradient and moments is read
//! once and written once.
//!
//! Elements are independent. So the bits depend neither on the number of threads nor on how a parameter is cut: a step
//! of rows is the rows of the step.

use pulp::Arch;
use rayon::prelude::*;

use super::master::Stored;
use super::number::{Number, Real};
use crate::compute::is_alone;
use crate::gradient::Factors;

/// An element-wise step of an optimizer with M moments. Moments begin as negative zeros, to which the first step adds.
pub(crate) trait Rule<const M: usize>: Copy + Send + Sync {
    /// The parameter and the moments after a step. To be inlined.
    fn update<N: Number>(self, parameter: N, gradient: N, moments: [N; M]) -> (N, [N; M]);
}

/// Gradients, and what they are multiplied with as they are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multiplied<'a, G> {
    pub(crate) values: &'a [G],
    pub(crate) factors: [f64; Factors::MAX],
}

impl<'a, G> Multiplied<'a, G> {
    fn part(self, values: &'a [G]) -> Self {
        Self { values, ..self }
    }
}

/// Elements that a thread takes at once: with two moments 1 MiB of f32, which fits into a second-level
/// cache and lasts far longer than it takes to hand it to a thread.
const PIECE_ELEMS: usize = 64 << 10;

/// Elements that are in 32 bits at once, where the parameter has 16: 12 KiB, for the first-level cache.
const BLOCK_ELEMS: usize = 1024;

/// One step, in place, on all threads of the rayon pool that this is called in.
///
/// # Panics
/// If the slices differ in length.
pub(crate) fn step<T: Real, const M: usize>(
    rule: impl Rule<M>,
    parameters: &mut [T],
    gradients: Multiplied<'_, T>,
    moments: [&mut [T]; M],
) {
    assert_lengths(parameters.len(), gradients.values, &moments);
    if is_alone(parameters.len(), PIECE_ELEMS) {
        return step_piece(rule, parameters, gradients, moments);
    }
    let parameters = parameters.par_chunks_mut(PIECE_ELEMS);
    let pieces = parameters.zip(gradients.values.par_chunks(PIECE_ELEMS));
    pieces.zip(cut(moments, gradients.values.len())).for_each(|((parameters, values), moments)| {
        let gradients = gradients.part(values);
        step_piece(rule, parameters, gradients, moments);
    });
}

/// [`step`] for parameters of 16 bits with `masters`, which take part in 32 bits and are rounded once. Gradients have
/// either type. A parameter that its master does not round to was changed elsewhere, and becomes the master.
///
/// # Panics
/// If the slices differ in length.
pub(crate) fn step_half<H: Stored, G: Stored, const M: usize>(
    rule: impl Rule<M>,
    parameters: &mut [H],
    masters: &mut [f32],
    gradients: Multiplied<'_, G>,
    moments: [&mut [f32]; M],
) {
    assert_lengths(parameters.len(), gradients.values, &moments);
    assert_eq!(parameters.len(), masters.len(), "parameters and masters");
    if is_alone(parameters.len(), PIECE_ELEMS) {
        return step_piece_half(rule, parameters, masters, gradients, moments);
    }
    let masters = masters.par_chunks_mut(PIECE_ELEMS);
    let parameters = parameters.par_chunks_mut(PIECE_ELEMS).zip(masters);
    let pieces = parameters.zip(gradients.values.par_chunks(PIECE_ELEMS));
    pieces.zip(cut(moments, gradients.values.len())).for_each(
        |(((parameters, masters), values), moments)| {
            let gradients = gradients.part(values);
            step_piece_half(rule, parameters, masters, gradients, moments);
        },
    );
}

fn assert_lengths<T, U, const M: usize>(elems: usize, gradients: &[T], moments: &[&mut [U]; M]) {
    assert_eq!(elems, gradients.len(), "parameters and gradients");
    for moment in moments {
        assert_eq!(elems, moment.len(), "parameters and moments");
    }
}

fn cut<T, const M: usize>(moments: [&mut [T]; M], elems: usize) -> Vec<[&mut [T]; M]> {
    let mut pieces = moments.map(|moment| moment.chunks_mut(PIECE_ELEMS));
    let next =
        |_| pieces.each_mut().map(|pieces| pieces.next().expect("as long as the parameters"));
    (0..elems.div_ceil(PIECE_ELEMS)).map(next).collect()
}

/// [`update`] with the widest vectors of the machine.
fn step_piece<T: Real, const M: usize>(
    rule: impl Rule<M>,
    parameters: &mut [T],
    gradients: Multiplied<'_, T>,
    moments: [&mut [T]; M],
) {
    Arch::new().dispatch(
        #[inline(always)]
        || update(rule, parameters, gradients, moments),
    );
}

/// [`update_half`] with the widest vectors of the machine.
fn step_piece_half<H: Stored, G: Stored, const M: usize>(
    rule: impl Rule<M>,
    parameters: &mut [H],
    masters: &mut [f32],
    gradients: Multiplied<'_, G>,
    moments: [&mut [f32]; M],
) {
    Arch::new().dispatch(
        #[inline(always)]
        || update_half(rule, parameters, masters, gradients, moments),
    );
}

#[inline(always)]
fn update<T: Real, const M: usize>(
    rule: impl Rule<M>,
    parameters: &mut [T],
    gradients: Multiplied<'_, T>,
    mut moments: [&mut [T]; M],
) {
    let elems = parameters.len();
    // Of one length, as the compiler can see.
    let values = &gradients.values[..elems];
    let [first, second] = gradients.factors;
    let mut moments = moments.each_mut().map(|moment| &mut moment[..elems]);
    for index in 0..elems {
        let gradient = values[index].times(first).times(second);
        let before = moments.each_ref().map(|moment| moment[index]);
        let (parameter, after) = rule.update(parameters[index], gradient, before);
        parameters[index] = parameter;
        for (moment, after) in moments.iter_mut().zip(after) {
            moment[index] = after;
        }
    }
}

#[inline(always)]
fn update_half<H: Stored, G: Stored, const M: usize>(
    rule: impl Rule<M>,
    parameters: &mut [H],
    masters: &mut [f32],
    gradients: Multiplied<'_, G>,
    mut moments: [&mut [f32]; M],
) {
    let mut wide = [0.0; BLOCK_ELEMS];
    let mut narrow = [H::default(); BLOCK_ELEMS];
    for start in (0..parameters.len()).step_by(BLOCK_ELEMS) {
        let block = start..parameters.len().min(start + BLOCK_ELEMS);
        let (wide, narrow) = (&mut wide[..block.len()], &mut narrow[..block.len()]);
        let (parameters, masters) = (&mut parameters[block.clone()], &mut masters[block.clone()]);
        H::narrow(masters, narrow);
        if bytemuck::cast_slice::<_, u8>(narrow) != bytemuck::cast_slice::<_, u8>(parameters) {
            follow(masters, parameters, narrow);
        }
        G::widen(&gradients.values[block.clone()], wide);
        let wide = Multiplied { values: &*wide, factors: gradients.factors };
        let moments = moments.each_mut().map(|moment| &mut moment[block.clone()]);
        update(rule, masters, wide, moments);
        H::narrow(masters, parameters);
    }
}

fn follow<H: Stored>(masters: &mut [f32], parameters: &[H], rounded: &[H]) {
    let pairs = parameters.iter().zip(rounded);
    for (master, (parameter, rounded)) in masters.iter_mut().zip(pairs) {
        if parameter != rounded {
            H::widen(&[*parameter], std::slice::from_mut(master));
        }
    }
}
