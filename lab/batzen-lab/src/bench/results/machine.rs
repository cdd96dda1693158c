//! The machine that a measurement ran on.

use serde::{Deserialize, Serialize};

/// The machine of a run, as far as it matters for comparing runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model as the kernel names it.
    pub model: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// The processor's instruction sets that affect the speed of our code.
    pub flags: Vec<String>,
    /// Operating system kernel and its release.
    pub kernel: String,
    /// Main memory.
    pub memory_bytes: u64,
}

/// The instruction sets that select a faster path somewhere in Batzen or in a library it links.
const FLAGS: [&str; 9] =
    ["aes", "avx2", "bmi2", "sha_ni", "vaes", "avx512f", "avx512_vbmi2", "avx512ifma", "asimd"];

impl Machine {
    /// Examines the machine this process runs on. Unknown values are "unknown" or zero.
    pub(crate) fn detect() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let uname = rustix::system::uname();
        let kernel = format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy());
        Self { kernel, ..Self::from_proc(&cpuinfo, &meminfo) }
    }

    fn from_proc(cpuinfo: &str, meminfo: &str) -> Self {
        let value = |name: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        let has = value("flags").or_else(|| value("Features")).unwrap_or_default();
        let has: Vec<&str> = has.split_whitespace().collect();
        let memory_kb = meminfo.lines().find_map(|line| {
            line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        });
        Self {
            model: processor_name(value("model name"), &value),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            flags: FLAGS.iter().filter(|flag| has.contains(flag)).map(|&flag| flag.to_owned()).collect(),
            kernel: "unknown".into(),
            memory_bytes: memory_kb.unwrap_or(0) * 1024,
        }
    }
}

/// Virtual machines often report a bare brand name; family and model then say more.
fn processor_name(name: Option<String>, value: &dyn Fn(&str) -> Option<String>) -> String {
    match (name, value("cpu family"), value("model")) {
        (Some(name), Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        (Some(name), ..) => name,
        (None, ..) => value("CPU part").map_or_else(|| "unknown".into(), |part| format!("CPU part {part}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read() {
        let cpuinfo = "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nflags\t\t: fpu aes avx2 \
                       avx512f avx512ifma\n";
        let machine = Machine::from_proc(cpuinfo, "MemTotal:       24576 kB\nMemFree: 1 kB\n");
        assert_eq!(machine.model, "AMD EPYC (family 26, model 2)");
        assert_eq!(machine.flags, ["aes", "avx2", "avx512f", "avx512ifma"]);
        assert_eq!(machine.memory_bytes, 24576 * 1024);
        let nothing = Machine::from_proc("", "");
        assert_eq!((nothing.model.as_str(), nothing.memory_bytes, nothing.flags.len()), ("unknown", 0, 0));
    }

    #[test]
    fn this_machine_has_a_name() {
        let machine = Machine::detect();
        assert!(machine.cores > 0 && !machine.model.is_empty() && machine.kernel.contains(' '));
    }
}
