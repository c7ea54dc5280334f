//! How much memory this process may use.
//!
//! Owns reading the system's figures and the limits of control groups. Invariant: a figure that cannot be read never
//! becomes a limit.

use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are mounted.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// Bytes of memory that this process may have: the machine's, or the least limit of its control groups.
///
/// None where the system does not say.
#[must_use]
pub fn limit() -> Option<u64> {
    least("MemTotal:")
}

/// Bytes that this process could have now, what the page cache would give up included: as [`limit`], but of the machine only
/// what no program holds.
#[must_use]
pub fn available() -> Option<u64> {
    least("MemAvailable:")
}

fn least(name: &str) -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| field(&text, name));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group_limit(Path::new(CGROUP_ROOT), &groups);
    [machine, group].into_iter().flatten().min()
}

/// Anonymous and file-backed bytes of this process that are in memory.
#[must_use]
pub fn resident() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    Some((field(&text, "RssAnon:")?, field(&text, "RssFile:")?))
}

/// Bytes of a line such as `MemTotal:  24 kB`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

/// The least limit from the process's groups up to the root; `groups` is what /proc/self/cgroup says.
fn group_limit(root: &Path, groups: &str) -> Option<u64> {
    let mut least = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        // Version 2 has one hierarchy without controllers' names, version 1 one for memory.
        let (base, file) = if controllers.is_empty() {
            (root.to_path_buf(), "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        // In a container the path may be the host's, of which only the root can be seen.
        let mut folder: PathBuf = base.join(path.trim_start_matches('/'));
        loop {
            let limit = fs::read_to_string(folder.join(file))
                .ok()
                .and_then(|text| text.trim().parse::<u64>().ok());
            least = [least, limit].into_iter().flatten().min();
            if folder == base || !folder.pop() {
                break;
            }
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_up_to_the_root_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("pod/worker");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(group_limit(root.path(), "0::/pod/worker\n"), None);
        fs::write(root.path().join("pod/memory.max"), "1048576\n").unwrap();
        assert_eq!(group_limit(root.path(), "0::/pod/worker\n"), Some(1 << 20));
        fs::write(inner.join("memory.max"), "4096\n").unwrap();
        assert_eq!(group_limit(root.path(), "0::/pod/worker\n"), Some(4096));
    }

    #[test]
    fn version_one_has_a_folder_for_memory() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("memory/job");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.limit_in_bytes"), "8192\n").unwrap();
        let groups = "5:cpu,cpuacct:/job\n4:memory:/job\n";
        assert_eq!(group_limit(root.path(), groups), Some(8192));
        assert_eq!(group_limit(root.path(), "5:cpu:/job\n"), None);
    }

    #[test]
    fn this_process_has_memory() {
        let (anonymous, _) = resident().unwrap();
        assert!(anonymous > 0 && anonymous < limit().unwrap());
        assert!(available().unwrap() <= limit().unwrap());
    }
}
