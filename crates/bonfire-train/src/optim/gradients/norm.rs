//! The joint norm of gradients, with the same bits on all replicas.

use std::fmt;
use std::ops::Range;

use bonfire_collective::{Rank, ReduceOp};
use bonfire_optim::cast;
use bonfire_plan::DType as Elements;
use burn::tensor::{DType, Int, Tensor, TensorData};

use super::{Entry, Gradients, Rest, together};
use crate::TrainError;

/// Replicas whose devices exchange values, for which the host does not wait. Every rank calls it alike.
pub(crate) trait Devices: fmt::Debug + Send + Sync {
    /// Returns the values of the first rank.
    fn first(&self, values: Tensor<1>) -> Result<Tensor<1>, TrainError>;

    /// Returns the values of all ranks, in their order, of which `pieces` has the places.
    fn all(
        &self,
        own: Option<Tensor<1>>,
        dtype: DType,
        pieces: &[Range<usize>],
    ) -> Result<Tensor<1>, TrainError>;

    /// Waits for all exchanges.
    fn settle(&self) -> Result<(), TrainError>;
}

impl Gradients {
    /// Returns the norm of all gradients together (2-norm), a tensor of one element on their device; `None` on a rank
    /// without gradients. Every rank calls it. It has the same bits on all replicas; on GPUs the replicas exchange it,
    /// which waits for the backward pass unless gradients stay on their devices and no other ranks have parts.
    ///
    /// # Errors
    /// Only on GPUs, and where other ranks have rows, parts or parameters of the model:
    /// [`TrainError::Collective`], or [`TrainError::UnreadableTensor`].
    pub fn norm(&self) -> Result<Option<Tensor<1>>, TrainError> {
        let rest = self.rest.as_ref().map(|rest| &rest.group);
        let others = self.parts.as_ref().or(self.stages.as_ref()).or(self.replicas.as_ref());
        let norm = self.same_norm();
        match others.or(rest) {
            Some(group) => group.or_abort(norm),
            None => norm,
        }
    }

    /// The norm with the same bits on all replicas.
    fn same_norm(&self) -> Result<Option<Tensor<1>>, TrainError> {
        let own = self.own_norm()?;
        let Some(replicas) = &self.replicas else {
            return Ok(own);
        };
        if let Some(devices) = &self.devices {
            return own.map(|norm| devices.first(norm)).transpose();
        }
        let number = match &own {
            Some(norm) => vec![read_squares(norm.clone())?[0]],
            None => Vec::new(),
        };
        let numbers = replicas.all_gather_v(&number)?;
        let first = numbers.iter().flatten().next().copied();
        let same = |(norm, first): (Tensor<1>, f64)| {
            Tensor::from_data(TensorData::new(vec![first], [1]), (&norm.device(), norm.dtype()))
        };
        Ok(own.zip(first).map(same))
    }

    fn own_norm(&self) -> Result<Option<Tensor<1>>, TrainError> {
        let wide = |entry: &Entry| self.table.get(entry.parameter).extent.dtype == Elements::F64;
        let widest = if self.entries.iter().any(wide) { DType::F64 } else { DType::F32 };
        let squares =
            self.entries.iter().map(|entry| cast(entry.values.row_squares(&self.factors), widest));
        let squares = match (&self.rest, &self.devices) {
            (Some(rest), Some(devices)) if self.parts.is_none() && self.stages.is_none() => {
                let all = self.rows_on_devices(squares.collect(), rest, &**devices)?;
                return Ok(all.map(|all| all.sum().sqrt()));
            }
            _ => squares.collect::<Vec<_>>(),
        };
        let squares = match &self.rest {
            None => squares,
            Some(rest) => self.all_rows(squares, rest)?,
        };
        if self.parts.is_none() && self.stages.is_none() {
            let any = !squares.is_empty();
            return Ok(any.then(|| Tensor::cat(together(squares), 0).sum().sqrt()));
        }
        let options = squares.first().map(|one| (one.device(), one.dtype()));
        // What all ranks have counts on the first of them.
        let is_first = self.parts.as_ref().is_none_or(|group| group.rank() == Rank::new(0));
        let own = self.entries.iter().zip(squares).filter(|(entry, _)| entry.is_part || is_first);
        let sum = self.over_others(own.map(|(_, squares)| squares).collect())?;
        let sum = |(device, dtype)| Tensor::from_data(TensorData::new(sum, [1]), (&device, dtype));
        Ok(options.map(|options| sum(options).sqrt()))
    }

    /// The sum of squares of this rank and of those that have other parts or parameters. A rank without any takes
    /// part.
    fn over_others(&self, own: Vec<Tensor<1>>) -> Result<Vec<f64>, TrainError> {
        let mut sum = if own.is_empty() {
            vec![0.0]
        } else {
            read_squares(Tensor::cat(together(own), 0).sum())?
        };
        for group in self.parts.iter().chain(&self.stages) {
            group.all_reduce(&mut sum, ReduceOp::Sum)?;
        }
        Ok(sum)
    }

    /// A number per row of all ranks, parameter by parameter, from those of this rank.
    fn all_rows(&self, own: Vec<Tensor<1>>, rest: &Rest) -> Result<Vec<Tensor<1>>, TrainError> {
        let is_cut = |entry: &&Entry| rest.shards.is_cut(entry.parameter);
        let rows = |entry: &Entry| rest.shards.rows(entry.parameter);
        let with_rows = |entry: &Entry| is_cut(&entry) && !rows(entry).is_empty();
        let mine = self.entries.iter().zip(&own).filter(|(entry, _)| with_rows(entry));
        let mine: Vec<_> = mine.map(|(_, own)| own.clone()).collect();
        let numbers = if mine.is_empty() {
            Vec::new()
        } else {
            read_squares(Tensor::cat(together(mine), 0))?
        };
        let blocks = rest.group.all_gather_v(&numbers)?;
        let mut blocks: Vec<_> = blocks.iter().collect();
        let all = self.entries.iter().zip(own).map(|(entry, own)| {
            if !is_cut(&entry) {
                return own;
            }
            let mut all: Vec<f64> = Vec::new();
            for (rank, block) in rest.group.world_size().ranks().zip(&mut blocks) {
                let rows = rest.shards.layout().rows(entry.parameter, rank);
                let (these, others) = block.split_at(rows.len());
                all.extend(these);
                *block = others;
            }
            let shape = [all.len()];
            Tensor::from_data(TensorData::new(all, shape), (&own.device(), own.dtype()))
        });
        Ok(all.collect())
    }

    /// A number per row of all ranks, in the order of the parameters, and those of parameters that are not cut.
    fn rows_on_devices(
        &self,
        own: Vec<Tensor<1>>,
        rest: &Rest,
        devices: &dyn Devices,
    ) -> Result<Option<Tensor<1>>, TrainError> {
        let Some(first) = own.first() else {
            return Ok(None);
        };
        let (device, dtype) = (first.device(), first.dtype());
        let ranks: Vec<Rank> = rest.group.world_size().ranks().collect();
        let cut = |parameter: usize| rest.shards.is_cut(parameter);
        let rows = |entry: &Entry, rank| rest.shards.layout().rows(entry.parameter, rank).len();
        // The gathered numbers are rank by rank, and what is not cut follows them.
        let mut ends: Vec<usize> = Vec::new();
        let mut pieces = Vec::new();
        let mut end = 0;
        for &rank in &ranks {
            let entries = self.entries.iter().filter(|entry| cut(entry.parameter));
            let count: usize = entries.map(|entry| rows(entry, rank)).sum();
            ends.push(end);
            pieces.push(end..end + count);
            end += count;
        }
        let (mut mine, mut others, mut order) = (Vec::new(), Vec::new(), Vec::new());
        for (entry, own) in self.entries.iter().zip(own) {
            if !cut(entry.parameter) {
                let count = own.dims()[0];
                order.extend((end..end + count).map(|place| place as i64));
                end += count;
                others.push(own);
                continue;
            }
            for (&rank, start) in ranks.iter().zip(&mut ends) {
                let count = rows(entry, rank);
                order.extend((*start..*start + count).map(|place| place as i64));
                *start += count;
            }
            if rows(entry, rest.group.rank()) > 0 {
                mine.push(own);
            }
        }
        let mine = (!mine.is_empty()).then(|| Tensor::cat(together(mine), 0));
        let all = devices.all(mine, dtype, &pieces)?;
        others.insert(0, all);
        let order = Tensor::<1, Int>::from_data(&order[..], &device);
        Ok(Some(Tensor::cat(together(others), 0).select(0, order)))
    }
}

fn read_squares(squares: Tensor<1>) -> Result<Vec<f64>, TrainError> {
    let data =
        squares.try_into_data().map_err(TrainError::unreadable("the squares of the gradients"))?;
    Ok(data.iter::<f64>().collect())
}
