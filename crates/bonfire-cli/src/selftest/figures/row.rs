//! The rows of the tables of times.

use super::bound::Verdict;

#[derive(Clone, Debug)]
pub(in crate::selftest) struct Row<'a> {
    pub(in crate::selftest) ranks: u32,
    pub(in crate::selftest) label: &'a str,
    pub(in crate::selftest) bytes: usize,
    pub(in crate::selftest) seconds: f64,
    /// What it is compared with, and what must come out.
    pub(in crate::selftest) beside: Beside,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::selftest) enum Beside {
    Nothing,
    /// The bandwidth that the memory allows, in GB/s.
    Limit(f64, Option<Verdict>),
    /// The time of something else over this one, or this one over that: a factor.
    Factor(f64, Option<Verdict>),
}

pub(in crate::selftest) fn print_header() {
    println!(
        "{:>5} {:<34} {:>11} {:>10} {:>10} {:>10} {:>9}",
        "ranks", "algorithm", "bytes", "time us", "GB/s", "limit", "factor"
    );
}

/// Prints a row for each way to do the same: its label, its seconds, and what stands beside them.
pub(in crate::selftest) fn print_ways(ranks: u32, bytes: usize, ways: [(&str, f64, Beside); 2]) {
    for (label, seconds, beside) in ways {
        let row = Row {
            ranks,
            label,
            bytes,
            seconds,
            beside,
        };
        row.print();
    }
}

impl Row<'_> {
    /// Bytes of the message per nanosecond.
    pub(in crate::selftest) fn algbw(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }

    pub(in crate::selftest) fn print(&self) {
        println!("{}", self.text().trim_end());
    }

    fn text(&self) -> String {
        let (limit, factor, verdict) = match self.beside {
            Beside::Nothing => (String::new(), String::new(), None),
            Beside::Limit(limit, verdict) => (
                format!("{limit:.1}"),
                format!("{:.2}", self.algbw() / limit),
                verdict,
            ),
            Beside::Factor(factor, verdict) => (String::new(), format!("{factor:.2}"), verdict),
        };
        let verdict = verdict.map(|verdict| format!("  {verdict}"));
        format!(
            "{:>5} {:<34} {:>11} {:>10.2} {:>10.1} {limit:>10} {factor:>9}{}",
            self.ranks,
            self.label,
            self.bytes,
            self.seconds * 1e6,
            self.algbw(),
            verdict.unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::bound::Bound;
    use super::*;

    #[test]
    fn a_row_says_how_much_of_the_limit_was_reached() {
        let row = Row {
            ranks: 4,
            label: "auto",
            bytes: 1_000_000,
            seconds: 1e-5,
            beside: Beside::Limit(200.0, Some(Bound::AtLeast(0.9).of(0.5))),
        };
        let text = row.text();
        let columns: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(
            columns[..7],
            ["4", "auto", "1000000", "10.00", "100.0", "200.0", "0.50"]
        );
        assert!(text.ends_with("must be >= 0.9: MISSED"), "{text}");
        let alone = Row {
            beside: Beside::Nothing,
            ..row
        };
        assert_eq!(alone.text().split_whitespace().count(), 5);
    }
}
