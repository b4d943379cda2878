//! One source of pictures divided in two: to learn from, and to be judged by.

use std::sync::Arc;

use chacha20::ChaCha8Rng;
use rand::SeedableRng;

use super::{Picture, PictureError, Pictures};
use crate::random::below;

/// Some pictures of a source, in their own order, with all its classes.
#[derive(Clone, Debug)]
pub struct Subset {
    source: Arc<dyn Pictures>,
    indices: Vec<usize>,
    labels: Vec<usize>,
}

impl Subset {
    /// Selects the pictures of `source` at `indices`.
    ///
    /// # Panics
    /// If an index is outside.
    pub fn new(source: Arc<dyn Pictures>, indices: Vec<usize>) -> Self {
        let labels = indices.iter().map(|&index| source.labels()[index]).collect();
        Self { source, indices, labels }
    }

    /// Returns the indices of its pictures in their source.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }
}

impl Pictures for Subset {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn classes(&self) -> &[String] {
        self.source.classes()
    }

    fn labels(&self) -> &[usize] {
        &self.labels
    }

    fn picture(&self, index: usize) -> Result<Picture, PictureError> {
        self.source.picture(self.indices[index])
    }
}

/// Holds out a share of each class, so that both parts have the source's proportions. The first part is for training,
/// the second is held out. The choice depends on the seed only, so every rank makes the same.
///
/// For a class of n pictures, n × `held_out` rounded are held out, at least one and never all.
///
/// # Errors
/// [`PictureError::Unsplittable`] if `held_out` is not between 0 and 1, or a class has one picture.
pub fn split_pictures(
    source: &Arc<dyn Pictures>,
    held_out: f64,
    seed: u64,
) -> Result<(Subset, Subset), PictureError> {
    let unsplittable =
        |cause: String| PictureError::Unsplittable { name: source.name().to_owned(), cause };
    if !(held_out > 0.0 && held_out < 1.0) {
        return Err(unsplittable(format!(
            "{held_out} is not a share to hold out; give a number between 0 and 1"
        )));
    }
    let mut of_class = vec![Vec::new(); source.classes().len()];
    for (index, &label) in source.labels().iter().enumerate() {
        of_class[label].push(index);
    }
    let (mut kept, mut held) = (Vec::new(), Vec::new());
    for (class, mut indices) in of_class.into_iter().enumerate() {
        if indices.is_empty() {
            continue;
        }
        if indices.len() == 1 {
            let name = &source.classes()[class];
            return Err(unsplittable(format!(
                "class {name} has only one picture; give it two or more"
            )));
        }
        let count = (indices.len() as f64 * held_out).round() as usize;
        let count = count.clamp(1, indices.len() - 1);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(class as u64);
        // The first steps of a Fisher-Yates shuffle choose `count` of them.
        for place in 0..count {
            let other = place + below(&mut rng, (indices.len() - place) as u64) as usize;
            indices.swap(place, other);
        }
        held.extend_from_slice(&indices[..count]);
        kept.extend_from_slice(&indices[count..]);
    }
    kept.sort_unstable();
    held.sort_unstable();
    let subset = |indices| Subset::new(Arc::clone(source), indices);
    Ok((subset(kept), subset(held)))
}

#[cfg(test)]
mod tests;
