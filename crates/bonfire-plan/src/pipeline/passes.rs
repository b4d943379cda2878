//! What is added to the passes of a schedule: messages, sums of gradients, gathers of parameters.
//!
//! The functions can be called in any order. They leave alone what is there already.

use super::action::Action;
use super::error::Broken;
use super::run::run;
use super::schedule::Schedule;
use super::verify::verify;

impl Schedule {
    /// The same with messages between ranks.
    ///
    /// As in PyTorch, the receive is put into the receiver's list at the moment at which the send is put into the
    /// sender's. So there is one order of all messages that every rank follows, and ranks that wait for each
    /// message never wait in a circle.
    ///
    /// # Errors
    /// [`Broken`] when the passes cannot run.
    pub fn with_messages(self) -> Result<Self, Broken> {
        verify(&self)?;
        if self.has_messages() {
            return Ok(self);
        }
        let mut lists = vec![Vec::new(); self.ranks().len()];
        run(&self, |rank, action| {
            lists[rank.index()].push(action);
            let Action::Compute(compute) = action else {
                return;
            };
            let output = self.output(compute);
            if let Some(message) = output.filter(|&message| self.crosses(message)) {
                lists[rank.index()].push(Action::Send(message));
                let target = self.owner(message.target());
                lists[target.index()].push(Action::Receive(message));
            }
        })?;
        Ok(self.with_lists(lists))
    }

    /// The same with a sum of each stage's gradients over its data-parallel ranks, behind the stage's last
    /// gradient and the message that it sends.
    #[must_use]
    pub fn with_reductions(self) -> Self {
        self.with_insertions(|list, stage| {
            let sum = Action::ReduceGradients { stage };
            let adds = |action: &Action| match action {
                Action::Compute(one) if one.stage == stage => one.pass.adds_to_gradients(),
                _ => false,
            };
            let (false, Some(last)) = (list.contains(&sum), list.iter().rposition(adds)) else {
                return;
            };
            let is_send = |action: &&Action| matches!(action, Action::Send(_));
            let sends = list[last + 1..].iter().take_while(is_send).count();
            list.insert(last + 1 + sends, sum);
        })
    }

    /// The same with the parameters of each stage gathered once, in front of the stage's first action, and released
    /// behind its last pass: for sharded parameters (ZeRO-3), which else every pass would gather again.
    #[must_use]
    pub fn with_gathers(self) -> Self {
        self.with_insertions(|list, stage| {
            let (gather, release) = (Action::Gather { stage }, Action::Release { stage });
            let is_own = |action: &Action| action.stage() == stage;
            let is_pass = |action: &Action| is_own(action) && matches!(action, Action::Compute(_));
            let first = list.iter().position(is_own);
            let last = list.iter().rposition(is_pass);
            let (false, Some(first), Some(last)) = (list.contains(&gather), first, last) else {
                return;
            };
            list.insert(last + 1, release);
            list.insert(first, gather);
        })
    }

    /// The same after `insert` into the list of the rank of each stage.
    fn with_insertions(self, insert: impl Fn(&mut Vec<Action>, u32)) -> Self {
        let mut lists = self.lists().to_vec();
        for stage in 0..self.stages() {
            insert(&mut lists[self.owner(stage).index()], stage);
        }
        self.with_lists(lists)
    }
}
