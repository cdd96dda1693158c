//! Placement of the server and the load generator on cores.

use std::collections::BTreeSet;
use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::bench::BenchError;
use crate::bench::error::Result;

/// Cores by number, ascending. An empty list means all cores, without pinning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cores(pub Vec<usize>);

impl FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::default());
        }
        let wrong = || "expected cores such as 0, 0,2 or 0-3,8, or none".to_owned();
        let number = |text: &str| -> Result<usize, String> {
            text.trim().parse().ok().filter(|core| *core < CpuSet::MAX_CPU).ok_or_else(wrong)
        };
        let mut cores = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            cores.extend(first..=last);
        }
        Ok(Self(cores.into_iter().collect()))
    }
}

impl std::fmt::Display for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let cores: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&cores.join(","))
    }
}

/// The cores that this thread may use.
pub(crate) fn allowed() -> Vec<usize> {
    sched_getaffinity(None)
        .map(|set| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
        .unwrap_or_default()
}

/// Placement of server and load generator on cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Cores of the server; empty: not pinned.
    pub(crate) server: Vec<usize>,
    /// Cores of the load generator; empty: not pinned.
    pub(crate) client: Vec<usize>,
    /// All cores of this process.
    pub(crate) all: Vec<usize>,
    /// A remark for the result.
    pub(crate) remark: Option<String>,
}

impl Placement {
    /// By default, half of the cores for each side. With one core only, nothing is pinned.
    ///
    /// # Errors
    /// [`BenchError::Usage`] for cores that this process may not use.
    pub(crate) fn choose(server: Option<&Cores>, client: Option<&Cores>) -> Result<Self> {
        Self::choose_from(allowed(), server, client)
    }

    /// The cores of a load generator whose server runs elsewhere.
    pub(crate) fn of_client(client: Option<&Cores>) -> Result<Self> {
        Ok(Self { remark: None, ..Self::choose(Some(&Cores::default()), client)? })
    }

    fn choose_from(all: Vec<usize>, server: Option<&Cores>, client: Option<&Cores>) -> Result<Self> {
        for (name, cores) in [("--server-cores", server), ("--client-cores", client)] {
            if let Some(core) = cores.and_then(|cores| cores.0.iter().find(|core| !all.contains(core))) {
                let all = Cores(all);
                return Err(BenchError::Usage(format!(
                    "{name}: core {core} cannot be used here, only {all}"
                )));
            }
        }
        let others = |taken: &[usize]| -> Vec<usize> {
            all.iter().copied().filter(|core| !taken.contains(core)).collect()
        };
        let (server, client) = match (server, client) {
            (Some(server), Some(client)) => (server.0.clone(), client.0.clone()),
            (Some(server), None) if server.0.is_empty() => (Vec::new(), Vec::new()),
            (Some(server), None) => (server.0.clone(), others(&server.0)),
            (None, Some(client)) if client.0.is_empty() => (Vec::new(), Vec::new()),
            (None, Some(client)) => (others(&client.0), client.0.clone()),
            (None, None) if all.len() < 2 => (Vec::new(), Vec::new()),
            (None, None) => {
                let (server, client) = all.split_at(all.len() / 2);
                (server.to_vec(), client.to_vec())
            }
        };
        let remark = if server.is_empty() || client.is_empty() {
            Some(
                "server and load generator are not pinned: they take processor time from each other"
                    .to_owned(),
            )
        } else if server.iter().any(|core| client.contains(core)) {
            Some("server and load generator share cores".to_owned())
        } else {
            None
        };
        Ok(Self { server, client, all, remark })
    }

    /// Number of cores that the server has.
    pub(crate) fn server_count(&self) -> usize {
        if self.server.is_empty() { self.all.len() } else { self.server.len() }.max(1)
    }

    /// Number of cores that the load generator has.
    pub(crate) fn client_count(&self) -> usize {
        if self.client.is_empty() { self.all.len() } else { self.client.len() }.max(1)
    }
}

/// Runs `action` with this thread pinned to `cores`, then restores the old pinning. Threads and processes
/// started meanwhile stay on those cores.
///
/// # Errors
/// When the system refuses; `action` has not run then.
pub(crate) fn on_cores<T>(cores: &[usize], action: impl FnOnce() -> T) -> Result<T> {
    if cores.is_empty() {
        return Ok(action());
    }
    let refused = |error| BenchError::set_up("cannot choose cores", error);
    let before = sched_getaffinity(None).map_err(refused)?;
    let mut wanted = CpuSet::new();
    for core in cores {
        wanted.set(*core);
    }
    sched_setaffinity(None, &wanted).map_err(refused)?;
    let outcome = action();
    sched_setaffinity(None, &before).map_err(refused)?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(text: &str) -> Cores {
        text.parse().unwrap()
    }

    #[test]
    fn lists_and_ranges_are_read() {
        assert_eq!(cores("0-3,8,2").0, [0, 1, 2, 3, 8]);
        assert_eq!(cores("none").0, Vec::<usize>::new());
        assert_eq!(cores("0-2").to_string(), "0,1,2");
        for wrong in ["", "a", "3-1", "1,", "-1", "99999999"] {
            assert!(wrong.parse::<Cores>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_machine_is_halved() {
        let four = || vec![0, 1, 2, 3];
        let both = Placement::choose_from(four(), None, None).unwrap();
        assert_eq!((both.server, both.client, both.remark), (vec![0, 1], vec![2, 3], None));
        let one = Placement::choose_from(four(), Some(&cores("0")), None).unwrap();
        assert_eq!((one.server, one.client), (vec![0], vec![1, 2, 3]));
        let one = Placement::choose_from(four(), None, Some(&cores("3"))).unwrap();
        assert_eq!((one.server, one.client), (vec![0, 1, 2], vec![3]));
        let shared = Placement::choose_from(four(), Some(&cores("0")), Some(&cores("0,1"))).unwrap();
        assert!(shared.remark.unwrap().contains("share"));
        let single = Placement::choose_from(vec![5], None, None).unwrap();
        assert!(single.server.is_empty() && single.remark.unwrap().contains("not pinned"));
        assert_eq!(Placement::choose_from(four(), Some(&cores("none")), None).unwrap().server_count(), 4);
        assert!(Placement::choose_from(four(), Some(&cores("4")), None).is_err());
    }

    #[test]
    fn threads_return_to_where_they_were() {
        let before = allowed();
        let last = *before.last().unwrap();
        let inside = on_cores(&[last], || std::thread::spawn(allowed).join().unwrap()).unwrap();
        assert_eq!(inside, [last]);
        assert_eq!(allowed(), before);
    }
}
