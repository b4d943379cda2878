//! The whole state of a simulation, and what happens next in it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar};
use std::time::Duration;

use crate::chance::Chance;
use crate::process::Process;
use crate::report::Report;
use crate::simulation::fault::Fault;
use crate::simulation::net::{Conditions, NetEvent, Wires};
use crate::task::{Key, Status, Task};

/// Something that happens at a set time.
#[derive(Debug)]
pub(crate) enum Event {
    Net(NetEvent),
    Fault(Fault),
    /// Continues a process that was stopped.
    Resume(usize),
}

#[derive(Debug)]
struct Due {
    at: Duration,
    /// In the order in which they were planned, where the time is the same.
    number: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// See the module. The thread that holds its lock and is `running` may change it.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) now: Duration,
    pub(crate) chance: Chance,
    pub(crate) conditions: Conditions,
    pub(crate) tasks: Vec<Task>,
    pub(crate) running: Option<usize>,
    pub(crate) processes: Vec<Process>,
    pub(crate) wires: Wires,
    due: BinaryHeap<Reverse<Due>>,
    planned: u64,
    /// No run takes longer than this, unless it hangs.
    horizon: Duration,
    pub(crate) report: Report,
}

impl State {
    pub(crate) fn new(seed: u64, conditions: Conditions, horizon: Duration) -> Self {
        Self {
            now: Duration::ZERO,
            chance: Chance::new(seed),
            conditions,
            tasks: Vec::new(),
            running: None,
            processes: Vec::new(),
            wires: Wires::default(),
            due: BinaryHeap::new(),
            planned: 0,
            horizon,
            report: Report::default(),
        }
    }

    pub(crate) fn plan(&mut self, at: Duration, event: Event) {
        let number = self.planned;
        self.planned += 1;
        self.due.push(Reverse(Due { at, number, event }));
    }

    /// Counts something into the digest of the run.
    pub(crate) fn trace(&mut self, number: u64) {
        let mixed = (self.report.trace ^ number).wrapping_mul(0x0000_0100_0000_01b3);
        self.report.trace = mixed.rotate_left(23) ^ self.now.as_nanos() as u64;
    }

    pub(crate) fn add_task(&mut self, name: &str, process: usize, is_main: bool) -> usize {
        self.tasks.push(Task {
            name: name.to_owned(),
            process,
            is_main,
            status: Status::Ready,
            turn: Arc::new(Condvar::new()),
        });
        self.tasks.len() - 1
    }

    pub(crate) fn wake(&mut self, key: Key) {
        for task in &mut self.tasks {
            task.wake(key);
        }
    }

    /// A thread has come to its end. That of its process's first thread is the process's.
    pub(crate) fn finish(&mut self, task: usize) {
        self.tasks[task].status = Status::Done;
        self.wake(Key::Task(task));
        if self.tasks[task].is_main {
            self.end_process(self.tasks[task].process);
        }
    }

    /// The process ends: its connections close, and its threads unwind at what they do next.
    pub(crate) fn end_process(&mut self, process: usize) {
        if self.processes[process].has_ended() {
            return;
        }
        self.trace(0xdead ^ process as u64);
        self.processes[process].end();
        for task in &mut self.tasks {
            if task.process == process && !task.is_done() {
                task.status = Status::Ready;
            }
        }
        self.close_all_of(process);
        self.end_if_over();
    }

    /// Ends what is left once no process that is awaited will run again.
    fn end_if_over(&mut self) {
        let is_over = |process: &Process| !process.is_awaited || process.is_hopeless();
        if self.processes.iter().all(is_over) {
            for process in 0..self.processes.len() {
                self.end_process(process);
            }
        }
    }

    /// Decides who runs next, and lets time pass until somebody can. Nobody if all have ended.
    pub(crate) fn choose_next(&mut self) {
        loop {
            self.catch_up();
            let is_stopped = |task: &Task| self.processes[task.process].is_stopped();
            let can_run =
                |(_, task): &(usize, &Task)| task.status == Status::Ready && !is_stopped(task);
            let ready: Vec<usize> =
                self.tasks.iter().enumerate().filter(can_run).map(|(index, _)| index).collect();
            if !ready.is_empty() {
                let next = ready[self.chance.index(ready.len())];
                self.trace(next as u64);
                self.report.turns += 1;
                self.running = Some(next);
                self.tasks[next].turn.notify_one();
                return;
            }
            if self.tasks.iter().all(Task::is_done) {
                self.running = None;
                return;
            }
            match self.next_time() {
                Some(next) if next <= self.horizon => self.now = next.max(self.now),
                _ => self.give_up(),
            }
        }
    }

    /// When something happens that was planned, or that somebody waits for.
    fn next_time(&self) -> Option<Duration> {
        let runs = |task: &&Task| !self.processes[task.process].is_stopped();
        let deadlines = self.tasks.iter().filter(runs).filter_map(Task::deadline);
        let planned = self.due.peek().map(|Reverse(due)| due.at);
        deadlines.chain(planned).min()
    }

    /// Handles the events that are due.
    fn catch_up(&mut self) {
        while let Some(Reverse(due)) = self.due.peek()
            && due.at <= self.now
            && let Some(Reverse(due)) = self.due.pop()
        {
            match due.event {
                Event::Net(event) => self.happen(event),
                Event::Fault(fault) => self.strike(fault),
                Event::Resume(process) => self.processes[process].resume(self.now),
            }
        }
        let now = self.now;
        for task in &mut self.tasks {
            if task.deadline().is_some_and(|deadline| deadline <= now) {
                task.status = Status::Ready;
            }
        }
    }

    fn strike(&mut self, fault: Fault) {
        self.trace(0xfa17);
        match fault {
            Fault::Kill(process) => self.end_process(process.0),
            Fault::Stop { process, span } => {
                let until = span.map(|span| self.now + span);
                self.processes[process.0].stop(until);
                match until {
                    Some(until) => self.plan(until, Event::Resume(process.0)),
                    None => self.end_if_over(),
                }
            }
            Fault::Cut { side, span } => self.cut(side, span),
            Fault::Reset(hosts) => self.reset_between(hosts),
            Fault::Flip(hosts) => self.wires.flip_between(hosts),
        }
    }

    /// Nothing can happen any more, or it takes too long: says who waits for what, and ends it all.
    fn give_up(&mut self) {
        let waiting = |task: &Task| {
            let process = &self.processes[task.process].name;
            format!("{process}, {}: {:?}", task.name, task.status)
        };
        let is_pending = |task: &&Task| !task.is_done();
        let waiting: Vec<String> = self.tasks.iter().filter(is_pending).map(waiting).collect();
        let text = format!("at {:?}:\n  {}", self.now, waiting.join("\n  "));
        self.report.hang.get_or_insert(text);
        for process in 0..self.processes.len() {
            self.end_process(process);
        }
        // Whoever was stopped runs to its end.
        self.processes.iter_mut().for_each(Process::end);
    }
}
