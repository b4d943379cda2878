//! How long an algorithm takes, from the figures of the links alone.

use bonfire_plan::{DType, LinkCosts, LinkFigures, ScheduleShape};

use crate::exec::executor::{Figures, LinkCost};

/// The closed form of the plan, in seconds.
pub(super) fn estimate(shape: &ScheduleShape, figures: &Figures, dtype: DType) -> f64 {
    let costs = |link: LinkCost| LinkCosts {
        alpha_s: link.seconds,
        beta_s_per_byte: link.seconds_per_byte,
    };
    let figures = LinkFigures {
        intra_host: costs(figures.intra_host),
        inter_host: costs(figures.inter_host),
        gamma_s_per_byte: figures.fold_seconds_per_byte,
    };
    bonfire_plan::estimate(shape, dtype, &figures)
}
