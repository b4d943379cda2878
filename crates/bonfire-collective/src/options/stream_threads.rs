//! Whether the streams of a link have threads.

/// Which threads call the kernel for the streams of a [link](crate::GroupOptions::streams_per_link).
///
/// A core sends or receives some gigabytes in a second. A rank that has several streams, and cores that nobody uses, gets
/// more through them with threads; where ranks fill the cores, threads are in their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StreamThreads {
    /// [`On`](Self::On) where ranks of the host times streams of a link are at most the cores that this rank may use.
    #[default]
    Auto,
    /// A thread for each stream but the first.
    On,
    /// The rank's own thread moves all bytes.
    Off,
}

impl StreamThreads {
    /// Whether links have threads, on a host of `cores` cores and `ranks` ranks.
    pub(crate) fn are_on(self, streams: u8, cores: usize, ranks: usize) -> bool {
        match self {
            Self::Auto => streams > 1 && cores >= ranks * usize::from(streams),
            Self::On => true,
            Self::Off => false,
        }
    }
}

bonfire_plan::named!(StreamThreads as "choice of threads" { Auto = "auto", On = "on", Off = "off" });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back_and_others_are_refused() {
        for choice in StreamThreads::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let error = "many".parse::<StreamThreads>().unwrap_err().to_string();
        assert!(error.contains("auto, on or off"), "{error}");
    }

    #[test]
    fn threads_need_cores_that_ranks_leave() {
        let auto = StreamThreads::Auto;
        assert!(auto.are_on(4, 16, 4));
        assert!(!auto.are_on(4, 16, 5));
        assert!(!auto.are_on(1, 64, 1), "nothing to share");
        assert!(StreamThreads::On.are_on(4, 1, 2));
        assert!(!StreamThreads::Off.are_on(4, 64, 1));
    }
}
