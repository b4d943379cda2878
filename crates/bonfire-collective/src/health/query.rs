//! Asks all ranks of a group what they do, and warns of a wait that lasts.

use std::time::Duration;

use bonfire_plan::Rank;

use crate::health::control;
use crate::health::poison::Poison;
use crate::health::reports::GroupReport;
use bonfire_connect::platform::thread;

/// How long an operation waits before the log names the ranks that it waits for. Shorter waits are normal: a
/// checkpoint, an evaluation on one rank.
pub(crate) const WARN_AFTER: Duration = Duration::from_secs(60);
/// How long other processes may take to answer. They need milliseconds; a stopped process never answers.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns what the ranks of a group do, those of other processes included. None before the group is complete.
pub(crate) fn report(poison: &Poison, operations_max: usize) -> Option<GroupReport> {
    let bond = poison.bond()?;
    let reports = poison.reports();
    // An answer belongs to the latest question.
    let _asking = reports.asking();
    if let Some(peers) = bond.peers.as_ref().and_then(|peers| peers.upgrade()) {
        control::ask(&peers, poison, operations_max, ANSWER_TIMEOUT);
    }
    let failure = poison.failure().map(|failure| failure.to_string());
    let mut records = reports.answers();
    let own = reports.own_records(failure.as_deref(), operations_max);
    records.extend(own.into_iter().map(|record| (record.rank, record)));
    let world_size = bond.members.len() as u32;
    let departed = (0..world_size)
        .map(Rank::new)
        .filter(|rank| poison.has_departed(*rank) && !records.contains_key(rank));
    Some(GroupReport {
        group: bond.number,
        world_size,
        departed: departed.collect(),
        stragglers: reports.stragglers(),
        records: records.into_values().collect(),
    })
}

/// Logs which ranks the group waits for, from a thread of its own: the caller moves the bytes of all sockets.
pub(crate) fn warn_of_wait(poison: &Poison) {
    let Some(bond) = poison.bond() else { return };
    let Some(poison) = bond.domain.group(poison) else {
        return;
    };
    // Without a thread there is no warning, but still the deadline.
    let _ = thread::spawn("bonfire-late", move || {
        if let Some(text) = warning(&poison) {
            tracing::warn!(target: "bonfire", "{text}");
        }
    });
}

/// Returns the warning, unless another rank logs it: the lowest one that waits does, once for each operation.
pub(crate) fn warning(poison: &Poison) -> Option<String> {
    let report = report(poison, 1).filter(|report| report.failure().is_none())?;
    let (first, operation) = report.waited_in()?;
    let reports = poison.reports();
    (reports.has_recorder(first) && reports.warns_of(&operation)).then(|| report.verdict())
}
