//! The order in which training passes gather parameters: what the last one gathered next, this one gathers ahead.
//!
//! All ranks know the same order, because their gathers were compared. A pass that leaves it gathers nothing
//! ahead from there on, and the next one follows the new order.

use std::mem;

/// The gathers of a forward pass and of the backward pass after it.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Of the last pass; empty where this one has left it.
    expected: Vec<usize>,
    /// Of this pass, so far.
    found: Vec<usize>,
}

impl Order {
    /// Notes that a parameter is gathered; the one that will be next, where that is known.
    pub(super) fn next(&mut self, parameter: usize) -> Option<usize> {
        if self.expected.get(self.found.len()) != Some(&parameter) {
            self.expected.clear();
        }
        self.found.push(parameter);
        self.expected.get(self.found.len()).copied()
    }

    /// Of the last pass.
    #[cfg(test)]
    pub(super) fn last(&self) -> &[usize] {
        &self.expected
    }

    /// Ends the pass.
    pub(super) fn end(&mut self) {
        self.expected = mem::take(&mut self.found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_next_is_next_until_the_order_changes() {
        let mut order = Order::default();
        let mut pass = |parameters: [usize; 4]| {
            let next = parameters.map(|parameter| order.next(parameter));
            order.end();
            next
        };
        assert_eq!(pass([0, 1, 1, 0]), [None; 4]);
        assert_eq!(pass([0, 1, 1, 0]), [Some(1), Some(1), Some(0), None]);
        assert_eq!(pass([0, 2, 1, 0]), [Some(1), None, None, None]);
        assert_eq!(pass([0, 2, 1, 0]), [Some(2), Some(1), Some(0), None]);
    }

    #[test]
    fn a_shorter_and_a_longer_pass_are_followed() {
        let mut order = Order::default();
        let mut pass = |parameters: &[usize]| {
            let next: Vec<_> = parameters.iter().map(|&p| order.next(p)).collect();
            order.end();
            next
        };
        pass(&[0, 1]);
        assert_eq!(pass(&[0]), [Some(1)]);
        assert_eq!(pass(&[0, 1]), [None, None]);
        assert_eq!(pass(&[0, 1]), [Some(1), None]);
    }
}
