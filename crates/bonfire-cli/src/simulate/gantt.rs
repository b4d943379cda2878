//! What the ranks of a pipeline do when, as an SVG image: a line for each rank, a box for each pass.

use std::error::Error;

use bonfire_plan::WorldSize;
use bonfire_plan::pipeline::{Pass, Timing};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Pixels of the image in width, of a rank in height, and of everything around the ranks.
const WIDTH: u32 = 1200;
const RANK_HEIGHT: u32 = 32;
const FRAME_HEIGHT: u32 = 110;

/// Pixels that the number of a micro-batch needs.
const LABEL_WIDTH: f64 = 14.0;

/// Apart from each other also for those who do not see all colours (Okabe and Ito, 2008).
fn colour(pass: Pass) -> RGBColor {
    match pass {
        Pass::Forward => RGBColor(0x56, 0xb4, 0xe9),
        Pass::Backward => RGBColor(0xe6, 0x9f, 0x00),
        Pass::InputGradient => RGBColor(0xcc, 0x79, 0xa7),
        Pass::WeightGradient => RGBColor(0x00, 0x9e, 0x73),
    }
}

/// Draws every pass with the number of its micro-batch; the later a stage of a rank is in the model, the paler.
pub(super) fn svg(title: &str, ranks: WorldSize, timing: &Timing) -> String {
    let mut svg = String::new();
    draw(&mut svg, title, ranks, timing).expect("drawing into a String cannot fail");
    svg
}

fn draw(
    svg: &mut String,
    title: &str,
    ranks: WorldSize,
    timing: &Timing,
) -> Result<(), Box<dyn Error>> {
    // Without any time there is nothing to see.
    let end = if timing.makespan_s > 0.0 { timing.makespan_s } else { 1.0 };
    let height = FRAME_HEIGHT + RANK_HEIGHT * ranks.get();
    let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let title = format!("{title} (F blue, B orange, I pink, W green)");
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 16))
        .margin(16)
        .x_label_area_size(36)
        .y_label_area_size(44)
        .build_cartesian_2d(0.0..end, 0.0..f64::from(ranks.get()))?;
    chart
        .configure_mesh()
        .disable_mesh()
        .disable_y_axis()
        .x_desc("time")
        .label_style(("sans-serif", 13))
        .draw()?;
    let label = TextStyle::from(("sans-serif", 11)).pos(Pos::new(HPos::Center, VPos::Center));
    for (rank, spans) in ranks.ranks().zip(&timing.spans) {
        let top = f64::from(ranks.get() - rank.get());
        let (name, left) =
            (format!("rank {rank} "), label.pos(Pos::new(HPos::Right, VPos::Center)));
        chart.draw_series([Text::new(name, (0.0, top - 0.5), left)])?;
        for span in spans {
            let compute = span.compute;
            let chunk = compute.stage / ranks.get();
            let fill = colour(compute.pass).mix(1.0 / (1.0 + 0.7 * f64::from(chunk)));
            let corners = [(span.start_s, top - 0.92), (span.end_s, top - 0.08)];
            let box_of = |style: ShapeStyle| Rectangle::new(corners, style);
            chart.draw_series([box_of(fill.filled()), box_of(BLACK.mix(0.4).stroke_width(1))])?;
            let width = (span.end_s - span.start_s) / end * f64::from(WIDTH);
            if width >= LABEL_WIDTH {
                let middle = ((span.start_s + span.end_s) / 2.0, top - 0.5);
                let number = compute.micro_batch.to_string();
                chart.draw_series([Text::new(number, middle, label.clone())])?;
            }
        }
    }
    root.present()?;
    Ok(())
}
