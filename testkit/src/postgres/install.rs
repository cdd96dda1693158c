//! Finds the installed PostgreSQL and the user to run it as.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::postgres::ClusterError;

/// Advice for a machine without PostgreSQL.
pub(crate) const MISSING: &str =
    "PostgreSQL is missing: sudo apt-get install postgresql (`make needs-test` does it for the tests)";

/// The oldest version that Batzen supports.
const OLDEST: u32 = 15;
/// The directory into which Debian's packages install each version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// Names the directory of the programs to use, for tests with other versions.
const CHOSEN: &str = "BATZEN_PG_BIN";

/// The programs of one installed version.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The major version.
    pub(crate) version: u32,
    /// The directory of its programs.
    pub bin: PathBuf,
}

impl Installation {
    /// The one in the directory that `BATZEN_PG_BIN` names; or the newest version that is installed: Debian's directories
    /// first, then the search path.
    ///
    /// # Errors
    /// None is installed, or only one that is too old.
    pub fn find() -> Result<Self, ClusterError> {
        let debian = std::fs::read_dir(DEBIAN).into_iter().flatten().flatten().filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some(Self { version, bin: entry.path().join("bin") })
        });
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&path).filter_map(|bin| {
            let version = version_of(&bin.join("postgres"))?;
            Some(Self { version, bin })
        });
        let is_whole = |found: &Self| {
            ["initdb", "postgres", "psql", "pg_basebackup"].iter().all(|name| found.bin.join(name).is_file())
        };
        let newest =
            |found: &mut dyn Iterator<Item = Self>| found.filter(is_whole).max_by_key(|found| found.version);
        let chosen = std::env::var_os(CHOSEN).map(PathBuf::from);
        let found = match chosen {
            Some(bin) => newest(
                &mut version_of(&bin.join("postgres")).map(|version| Self { version, bin }).into_iter(),
            ),
            None => newest(&mut debian.into_iter()).or_else(|| newest(&mut on_path.into_iter())),
        };
        match found {
            None => Err(ClusterError::Missing),
            Some(found) if found.version < OLDEST => Err(ClusterError::TooOld(found.version)),
            Some(found) => Ok(found),
        }
    }

    /// One of its programs, in the C locale, since its output is parsed.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("PG") || name.starts_with("LC_")) {
                command.env_remove(name);
            }
        }
        command.env("LC_ALL", "C").env("TZ", "UTC");
        command
    }
}

/// `postgres (PostgreSQL) 15.14 (Debian …)` → 15.
fn version_of(program: &Path) -> Option<u32> {
    if !program.is_file() {
        return None;
    }
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let number = text.split("(PostgreSQL) ").nth(1)?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The user that runs the server; `None`: the current one, which is not root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    ids: Option<(u32, u32)>,
}

impl Owner {
    pub(crate) fn find() -> Result<Self, ClusterError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self { ids: None });
        }
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let ids = ids_of(&users, "postgres").or_else(|| ids_of(&users, "nobody"));
        ids.map(|ids| Self { ids: Some(ids) }).ok_or(ClusterError::NoUser)
    }

    /// Makes a program run as this user, without supplementary groups.
    pub(crate) fn run(self, command: &mut Command) -> &mut Command {
        match self.ids {
            Some((user, group)) => command.gid(group).uid(user),
            None => command,
        }
    }

    /// Changes the owner of a file or directory to this user.
    pub(crate) fn give(self, path: &Path) -> Result<(), ClusterError> {
        let Some((user, group)) = self.ids else { return Ok(()) };
        std::os::unix::fs::chown(path, Some(user), Some(group)).map_err(ClusterError::io(path))
    }
}

/// The ids of a user in `/etc/passwd`, and of its group.
fn ids_of(users: &str, name: &str) -> Option<(u32, u32)> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then_some(())?;
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_named_user() {
        let users = "root:x:0:0:root:/root:/bin/bash\npostgres:x:101:104:P:/var/lib/postgresql:/bin/bash\n";
        assert_eq!(ids_of(users, "postgres"), Some((101, 104)));
        assert_eq!(ids_of(users, "post"), None);
    }
}
