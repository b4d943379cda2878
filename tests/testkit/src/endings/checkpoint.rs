//! The checkpoint of the test training: a file that is whole or not there.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A state to continue from.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    pub step: u64,
    pub weights: Vec<f32>,
}

fn path(folder: &Path) -> PathBuf {
    folder.join("checkpoint")
}

impl Checkpoint {
    /// Replaces the checkpoint in `folder`. A crash leaves the old one or the new one.
    ///
    /// # Errors
    /// What the file system says.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        let mut text = format!("{}\n", self.step);
        for weight in &self.weights {
            text.push_str(&format!("{:08x}\n", weight.to_bits()));
        }
        text.push_str("end\n");
        let draft = folder.join("checkpoint.draft");
        let mut file = fs::File::create(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        fs::rename(draft, path(folder))
    }

    /// The checkpoint in `folder`; none if there is none.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn load(folder: &Path) -> Result<Option<Self>, String> {
        let text = match fs::read_to_string(path(folder)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let mut lines = text.lines();
        let step = lines.next().and_then(|line| line.parse().ok());
        let step = step.ok_or("the checkpoint has no step")?;
        let mut weights = Vec::new();
        for line in lines {
            if line == "end" {
                return Ok(Some(Self { step, weights }));
            }
            let bits = u32::from_str_radix(line, 16).map_err(|error| error.to_string())?;
            weights.push(f32::from_bits(bits));
        }
        Err(format!("the checkpoint of step {step} is cut short"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_what_is_cut_is_not() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Checkpoint::load(folder.path()), Ok(None));
        let saved = Checkpoint { step: 7, weights: vec![0.1, -3.0] };
        saved.save(folder.path()).unwrap();
        assert_eq!(Checkpoint::load(folder.path()), Ok(Some(saved)));
        let text = fs::read_to_string(path(folder.path())).unwrap();
        fs::write(path(folder.path()), &text[..text.len() - 5]).unwrap();
        assert!(Checkpoint::load(folder.path()).is_err());
    }
}
