//! What the kernel tells of a process.

use std::fs;

/// A process of this host, as `/proc/PID/stat` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// The first 15 bytes of the program's name, or what the process calls itself.
    pub name: String,
    /// The letter of its state: `T` if it is stopped, `t` if a debugger holds it, `Z` for a zombie.
    pub state: char,
    /// The process that started it, or took it over; 0 for one outside of the container.
    pub parent: u32,
    /// Its process group; 0 for one outside of the container.
    pub group: u32,
    /// Its session; 0 for one outside of the container.
    pub session: u32,
}

impl ProcessStat {
    /// Reads the present values; `None` if the process does not exist.
    pub fn read(id: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
    }

    /// Parses `PID (NAME) STATE PARENT GROUP SESSION ...`, whose name can contain anything.
    fn parse(stat: &str) -> Option<Self> {
        let (head, tail) = stat.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        let mut fields = tail.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let mut number = || fields.next()?.parse().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        Some(Self { name: name.to_owned(), state, parent, group, session })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_hides_nothing() {
        let stat = ProcessStat::parse("71 (a) S (7 b) T 12 0 34 0 -1 4194560").unwrap();
        let expected = ProcessStat {
            name: "a) S (7 b".to_owned(),
            state: 'T',
            parent: 12,
            group: 0,
            session: 34,
        };
        assert_eq!(stat, expected);
        assert_eq!(ProcessStat::parse("71 (a) T 12"), None);
    }

    #[test]
    fn this_process_is_a_child_of_its_parent() {
        let stat = ProcessStat::read(std::process::id()).unwrap();
        assert_eq!(stat.parent, std::os::unix::process::parent_id());
        assert!(ProcessStat::read(0).is_none());
    }
}
