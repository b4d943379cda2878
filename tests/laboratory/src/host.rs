//! Which machine a thread of the simulation is on.

use crate::simulation::place::here;

pub fn cores() -> usize {
    here().lock().conditions.cores
}

pub fn open_files_left() -> u64 {
    u64::MAX
}

pub fn process_state(id: u32) -> Option<char> {
    let place = here();
    let state = place.lock();
    let process = state.processes.iter().find(|process| process.system_id() == id)?;
    match (process.has_ended(), process.is_stopped()) {
        (true, _) => None,
        (_, true) => Some('T'),
        _ => Some('S'),
    }
}

/// Text that is the same for the processes of one host and no others.
pub fn identity() -> String {
    let place = here();
    let host = place.lock().processes[place.process].host;
    format!("host-{host}")
}
