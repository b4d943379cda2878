//! The linear algebra of PowerSGD, on row-major f32 matrices. Pure.
//!
//! Thin factors are stored vector by vector: `rank` vectors, each contiguous. All sums have a fixed order that does
//! not depend on the machine, so ranks that start from the same bits end with the same bits.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dims {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) rank: usize,
}

impl Dims {
    pub(crate) fn elems(self) -> usize {
        self.rows * self.cols
    }

    /// Elements of the left factor: `rank` vectors with one element for each row.
    pub(crate) fn left_elems(self) -> usize {
        self.rank * self.rows
    }

    /// Elements of the right factor: `rank` vectors with one element for each column.
    pub(crate) fn right_elems(self) -> usize {
        self.rank * self.cols
    }
}

/// Partial sums of a dot product that are kept apart, so that they fit into vector registers.
const LANES: usize = 16;

/// `left = matrix * right`.
pub(crate) fn times(matrix: &[f32], dims: Dims, right: &[f32], left: &mut [f32]) {
    assert_eq!(matrix.len(), dims.elems(), "the matrix has its size");
    assert_eq!(right.len(), dims.right_elems(), "the right factor, too");
    assert_eq!(left.len(), dims.left_elems(), "and the left one");
    for (row, values) in matrix.chunks_exact(dims.cols).enumerate() {
        for (vector, right) in right.chunks_exact(dims.cols).enumerate() {
            left[vector * dims.rows + row] = dot(values, right);
        }
    }
}

/// `right = transpose(matrix) * left`.
pub(crate) fn transposed_times(matrix: &[f32], dims: Dims, left: &[f32], right: &mut [f32]) {
    assert_eq!(matrix.len(), dims.elems(), "the matrix has its size");
    assert_eq!(left.len(), dims.left_elems(), "the left factor, too");
    assert_eq!(right.len(), dims.right_elems(), "and the right one");
    right.fill(0.0);
    for (row, values) in matrix.chunks_exact(dims.cols).enumerate() {
        for (vector, right) in right.chunks_exact_mut(dims.cols).enumerate() {
            add_scaled(right, values, left[vector * dims.rows + row]);
        }
    }
}

/// Row `row` of `left * transpose(right)`.
pub(crate) fn product_row(dims: Dims, left: &[f32], right: &[f32], row: usize, to: &mut [f32]) {
    assert_eq!(to.len(), dims.cols, "a row has an element for each column");
    to.fill(0.0);
    for (vector, right) in right.chunks_exact(dims.cols).enumerate() {
        add_scaled(to, right, left[vector * dims.rows + row]);
    }
}

/// Makes vectors orthogonal to each other and of length 1, by the Gram-Schmidt process in f64, each
/// projection done twice ("twice is enough", Giraud et al. 2005). A vector that depends on those
/// before it becomes zero. `epsilon` is added to each length before it divides.
pub(crate) fn orthogonalize(vectors: &mut [f32], len: usize, epsilon: f64) {
    assert!(
        len > 0 && vectors.len().is_multiple_of(len),
        "{} elements are not vectors of {len}",
        vectors.len()
    );
    for index in 0..vectors.len() / len {
        let (before, rest) = vectors.split_at_mut(index * len);
        let vector = &mut rest[..len];
        let given = norm(vector);
        for _ in 0..2 {
            for other in before.chunks_exact(len) {
                let along = dot_wide(vector, other);
                for (value, other) in vector.iter_mut().zip(other) {
                    *value = (f64::from(*value) - along * f64::from(*other)) as f32;
                }
            }
        }
        let left_over = norm(vector);
        // What rounding leaves of a dependent vector. Infinities and NaN are not hidden.
        let dependent = given.is_finite() && left_over <= given * 16.0 * f64::from(f32::EPSILON);
        let factor = if dependent { 0.0 } else { 1.0 / (left_over + epsilon) };
        for value in vector.iter_mut() {
            *value = (f64::from(*value) * factor) as f32;
        }
    }
}

fn norm(vector: &[f32]) -> f64 {
    dot_wide(vector, vector).sqrt()
}

fn dot_wide(left: &[f32], right: &[f32]) -> f64 {
    let pairs = left.iter().zip(right);
    pairs.map(|(l, r)| f64::from(*l) * f64::from(*r)).sum()
}

fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (left_blocks, left_rest) = left.as_chunks::<LANES>();
    let (right_blocks, right_rest) = right.as_chunks::<LANES>();
    for (left, right) in left_blocks.iter().zip(right_blocks) {
        for (lane, (left, right)) in lanes.iter_mut().zip(left.iter().zip(right)) {
            *lane += left * right;
        }
    }
    for (lane, (left, right)) in lanes.iter_mut().zip(left_rest.iter().zip(right_rest)) {
        *lane += left * right;
    }
    lanes.iter().sum()
}

fn add_scaled(target: &mut [f32], source: &[f32], factor: f32) {
    for (target, source) in target.iter_mut().zip(source) {
        *target += source * factor;
    }
}

#[cfg(test)]
mod tests {
    use chacha20::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn random(seed: u64, len: usize) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    /// Of `terms` products of numbers below 1, added in f32 (Higham, 3.1), twice for safety.
    fn tolerance(terms: usize) -> f64 {
        2.0 * terms as f64 * terms as f64 * f64::from(f32::EPSILON)
    }

    #[test]
    fn products_are_those_of_the_definition() {
        for (rows, cols, rank) in [(1, 1, 1), (3, 40, 2), (17, 16, 3), (5, 33, 5)] {
            let dims = Dims { rows, cols, rank };
            let matrix = random(1, dims.elems());
            let right = random(2, dims.right_elems());
            let mut left = vec![f32::NAN; dims.left_elems()];
            times(&matrix, dims, &right, &mut left);
            let mut back = vec![f32::NAN; dims.right_elems()];
            transposed_times(&matrix, dims, &left, &mut back);
            for vector in 0..rank {
                for row in 0..rows {
                    let terms = (0..cols).map(|col| {
                        f64::from(matrix[row * cols + col]) * f64::from(right[vector * cols + col])
                    });
                    let expected: f64 = terms.sum();
                    let found = f64::from(left[vector * rows + row]);
                    assert!((found - expected).abs() <= tolerance(cols), "{dims:?}");
                }
                for col in 0..cols {
                    let terms = (0..rows).map(|row| {
                        f64::from(matrix[row * cols + col]) * f64::from(left[vector * rows + row])
                    });
                    let expected: f64 = terms.sum();
                    let found = f64::from(back[vector * cols + col]);
                    assert!((found - expected).abs() <= tolerance(rows * cols), "{dims:?}");
                }
            }
            let mut row = vec![f32::NAN; cols];
            product_row(dims, &left, &right, rows - 1, &mut row);
            for (col, found) in row.iter().enumerate() {
                let terms = (0..rank).map(|vector| {
                    f64::from(left[vector * rows + rows - 1])
                        * f64::from(right[vector * cols + col])
                });
                let expected: f64 = terms.sum();
                assert!((f64::from(*found) - expected).abs() <= tolerance(rank * cols));
            }
        }
    }

    #[test]
    fn orthogonal_vectors_have_length_one_and_span_what_they_did() {
        let (len, count) = (20, 6);
        let given = random(3, len * count);
        let mut vectors = given.clone();
        orthogonalize(&mut vectors, len, 0.0);
        let bound = tolerance(len);
        for (i, first) in vectors.chunks_exact(len).enumerate() {
            for (j, second) in vectors.chunks_exact(len).enumerate() {
                let expected = if i == j { 1.0 } else { 0.0 };
                assert!((dot_wide(first, second) - expected).abs() < bound, "{i}, {j}");
            }
        }
        for vector in given.chunks_exact(len) {
            let along: f64 =
                vectors.chunks_exact(len).map(|unit| dot_wide(unit, vector).powi(2)).sum();
            assert!((along - dot_wide(vector, vector)).abs() < bound * len as f64);
        }
    }

    #[test]
    fn a_dependent_vector_becomes_zero_and_others_stay() {
        let first = random(4, 8);
        let twice: Vec<f32> = first.iter().map(|value| 2.0 * value).collect();
        let mut vectors = [first, vec![0.0; 8], twice, random(5, 8)].concat();
        orthogonalize(&mut vectors, 8, 0.0);
        assert_eq!(vectors[8..24], [0.0; 16]);
        assert!((norm(&vectors[24..]) - 1.0).abs() < tolerance(8));
    }

    #[test]
    fn what_is_not_finite_is_not_hidden() {
        for broken in [f32::INFINITY, f32::NAN] {
            let mut vectors = random(6, 8);
            vectors[3] = broken;
            orthogonalize(&mut vectors, 4, 0.0);
            assert!(vectors.iter().any(|value| value.is_nan()));
        }
    }
}
