//! Every rank's time as a bar of its parts, as an SVG image.

use std::fmt::{self, Write};
use std::time::Duration;

use super::TimeSplit;
use super::chart::{COLOURS, escape};

/// Pixels.
const WIDTH: f64 = 960.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 96.0;
const TOP: f64 = 40.0;
const ROW: f64 = 26.0;
const BAR: f64 = 18.0;

/// Draws one bar per rank, all to one scale, as long as `total` is or the longest bar.
pub(super) fn svg(ranks: &[TimeSplit], total: Duration) -> String {
    let mut svg = String::new();
    draw(&mut svg, ranks, total).expect("writing to a String cannot fail");
    svg
}

fn draw(svg: &mut String, ranks: &[TimeSplit], total: Duration) -> fmt::Result {
    let height = TOP + ROW * ranks.len() as f64 + 12.0;
    let longest = ranks.iter().map(sum).fold(total, Duration::max);
    let px_per_second = (WIDTH - LEFT - RIGHT) / longest.as_secs_f64().max(1e-9);
    writeln!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13" fill="#333">
<rect width="{WIDTH}" height="{height}" fill="white"/>"##
    )?;
    draw_legend(svg)?;
    for (rank, split) in ranks.iter().enumerate() {
        let y = TOP + ROW * rank as f64;
        let (text, name) = (y + 14.0, LEFT - 10.0);
        writeln!(
            svg,
            r#"<text x="{name}" y="{text}" text-anchor="end">rank {rank}</text>"#
        )?;
        let mut x = LEFT;
        for ((name, part), colour) in split.parts().into_iter().zip(COLOURS) {
            let seconds = part.as_secs_f64();
            let width = seconds * px_per_second;
            writeln!(
                svg,
                r#"<rect x="{x:.1}" y="{y}" width="{width:.1}" height="{BAR}" fill="{colour}"><title>{}: {seconds:.2} s</title></rect>"#,
                escape(name)
            )?;
            x += width;
        }
        let (end, seconds) = (x + 8.0, sum(split).as_secs_f64());
        writeln!(
            svg,
            r#"<text x="{end:.1}" y="{text}">{seconds:.1} s</text>"#
        )?;
    }
    writeln!(svg, "</svg>")
}

fn draw_legend(svg: &mut String) -> fmt::Result {
    let parts = TimeSplit::default().parts();
    let step = (WIDTH - LEFT) / parts.len() as f64;
    for (place, ((name, _), colour)) in parts.into_iter().zip(COLOURS).enumerate() {
        let x = LEFT + step * place as f64;
        let text = x + 16.0;
        writeln!(
            svg,
            r#"<rect x="{x:.1}" y="10" width="11" height="11" fill="{colour}"/>
<text x="{text:.1}" y="20" font-size="12">{}</text>"#,
            escape(name)
        )?;
    }
    Ok(())
}

fn sum(split: &TimeSplit) -> Duration {
    split.parts().iter().map(|&(_, part)| part).sum()
}

#[cfg(test)]
mod tests {
    use super::super::html::tests::is_balanced;
    use super::*;

    #[test]
    fn every_rank_has_a_bar_of_its_parts_to_one_scale() {
        let split = |seconds| TimeSplit {
            forward_backward: Duration::from_secs(seconds),
            ..TimeSplit::default()
        };
        let svg = svg(&[split(10), split(5)], Duration::from_secs(10));
        assert!(is_balanced(&svg), "{svg}");
        let whole = WIDTH - LEFT - RIGHT;
        for (width, rank) in [(whole, 0), (whole / 2.0, 1)] {
            assert!(svg.contains(&format!(r#"width="{width:.1}" height="{BAR}""#)));
            assert!(svg.contains(&format!(">rank {rank}<")));
        }
        assert!(svg.contains("forward+backward: 10.00 s"));
    }

    #[test]
    fn no_ranks_and_no_time_are_drawn_too() {
        for ranks in [&[][..], &[TimeSplit::default(); 3]] {
            let svg = svg(ranks, Duration::ZERO);
            assert!(is_balanced(&svg) && !svg.contains("NaN"), "{svg}");
        }
    }
}
