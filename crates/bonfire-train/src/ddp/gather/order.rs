//! The order in which training passes gather parameters: the next gather of the last pass is started ahead in this
//! one.
//!
//! All ranks know the same order: their gathers, or the orders of their passes, were compared. A pass that leaves it gathers nothing
//! ahead from there on, and the next one follows the new order.

use std::mem;

/// The gathers of a forward pass and of the backward pass after it.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The gathers of the last pass; empty where this one has diverged from it.
    expected: Vec<usize>,
    /// The gathers of this pass so far.
    found: Vec<usize>,
}

impl Order {
    /// Records a gather; returns the next one, if it is known.
    pub(super) fn next(&mut self, parameter: usize) -> Option<usize> {
        if self.expected.get(self.found.len()) != Some(&parameter) {
            self.expected.clear();
        }
        self.found.push(parameter);
        self.expected.get(self.found.len()).copied()
    }

    /// The gathers of the last pass.
    pub(super) fn last(&self) -> &[usize] {
        &self.expected
    }

    /// Ends the pass, whose order is the next expectation.
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
