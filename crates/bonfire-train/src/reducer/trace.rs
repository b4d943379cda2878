//! Records the order of events in a backward pass, for tests; does nothing otherwise.

#[cfg(test)]
pub(crate) use recorded::{Event, Trace};
#[cfg(not(test))]
pub(crate) use silent::Trace;

#[cfg(not(test))]
mod silent {
    #[derive(Debug)]
    pub(crate) struct Trace;

    impl Trace {
        pub(crate) fn new() -> Self {
            Self
        }
        pub(crate) fn clear(&self) {}
        pub(crate) fn taken(&self, _parameter: usize) {}
        pub(crate) fn read(&self, _bucket: usize) {}
        pub(crate) fn sent(&self, _bucket: usize) {}
    }
}

#[cfg(test)]
mod recorded {
    use std::sync::{Arc, Mutex};

    /// Something that happened.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) enum Event {
        Taken {
            parameter: usize,
        },
        Read {
            bucket: usize,
        },
        Sent {
            bucket: usize,
        },
        /// A mark that a test set.
        Mark(&'static str),
    }

    /// The events of one rank, in order.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Trace {
        events: Arc<Mutex<Vec<Event>>>,
    }

    impl Trace {
        pub(crate) fn new() -> Self {
            Self::default()
        }
        fn push(&self, event: Event) {
            self.events.lock().unwrap().push(event);
        }
        pub(crate) fn clear(&self) {
            self.events.lock().unwrap().clear();
        }
        pub(crate) fn taken(&self, parameter: usize) {
            self.push(Event::Taken { parameter });
        }
        pub(crate) fn read(&self, bucket: usize) {
            self.push(Event::Read { bucket });
        }
        pub(crate) fn sent(&self, bucket: usize) {
            self.push(Event::Sent { bucket });
        }
        pub(crate) fn mark(&self, mark: &'static str) {
            self.push(Event::Mark(mark));
        }
        pub(crate) fn events(&self) -> Vec<Event> {
            self.events.lock().unwrap().clone()
        }
    }
}
