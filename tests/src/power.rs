//! What a disk may hold after a power cut: a model of files and folders, fed with the calls of a real run.
//!
//! Owns the rules, those of POSIX and no kinder: bytes last after an fsync of their file, names after one of their folder. Of
//! whatever came later each write and each change of a name is there or not, by itself, and of a write perhaps a part. A rename is
//! atomic. Invariant: an fsync covers only what had ended before it began, so threads are judged by what they could rely on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::dice::Dice;
use crate::strace::Call;

/// What a disk writes as one: the rest of the last one of a torn write holds anything.
const SECTOR_BYTES: usize = 512;

/// What an fsync is called on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file: its bytes.
    File,
    /// A folder: the names in it.
    Folder,
}

/// A folder, what processes see in it, and what of that would survive.
#[derive(Debug, Clone)]
pub struct Disk {
    root: PathBuf,
    /// The first is the root.
    nodes: Vec<Node>,
    deaf_to: Option<Kind>,
}

#[derive(Debug, Clone)]
enum Node {
    File(Bytes),
    Folder(Names),
}

type Bytes = Kept<Rc<Vec<u8>>, Write>;
type Names = Kept<BTreeMap<String, usize>, Rename>;

/// A thing in two states, and the steps between them, each with its place in the trace, unless that was an earlier one.
#[derive(Debug, Clone)]
struct Kept<T, S> {
    durable: T,
    seen: T,
    steps: Vec<(Option<usize>, S)>,
}

/// One change of a [`Kept`] thing.
trait Step<T> {
    fn apply(&self, to: &mut T);
}

/// A write, or a change of the length.
#[derive(Debug, Clone)]
enum Write {
    Bytes { at: usize, bytes: Vec<u8> },
    Length(usize),
}

/// A name that goes, one that comes, or both at once.
#[derive(Debug, Clone)]
struct Rename {
    gone: Option<String>,
    come: Option<(String, usize)>,
}

/// What a disk holds: files and folders by their paths below the model's root.
#[derive(Debug, Clone, Default)]
pub struct Image(pub BTreeMap<String, Entry>);

/// One of them.
#[derive(Debug, Clone)]
pub enum Entry {
    /// A folder.
    Folder,
    /// A file.
    File {
        /// What is in it.
        bytes: Rc<Vec<u8>>,
        /// Whether that is all that had been written.
        whole: bool,
    },
}

impl Step<Rc<Vec<u8>>> for Write {
    fn apply(&self, to: &mut Rc<Vec<u8>>) {
        let to = Rc::make_mut(to);
        match self {
            Self::Bytes { at, bytes } => {
                to.resize(to.len().max(at + bytes.len()), 0);
                to[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Self::Length(length) => to.resize(*length, 0),
        }
    }
}

impl Step<BTreeMap<String, usize>> for Rename {
    fn apply(&self, to: &mut BTreeMap<String, usize>) {
        if let Some(name) = &self.gone {
            to.remove(name);
        }
        if let Some((name, node)) = &self.come {
            to.insert(name.clone(), *node);
        }
    }
}

impl Write {
    /// What is on the disk if the power goes in the middle of it.
    fn torn(&self, dice: &mut Dice) -> Option<Self> {
        let Self::Bytes { at, bytes } = self else {
            return None;
        };
        let kept = dice.below(bytes.len().max(1));
        let end = bytes.len().min(kept.next_multiple_of(SECTOR_BYTES));
        let filling = *dice.pick(&[0, 0xa5]);
        let mut bytes = bytes[..end].to_vec();
        bytes[kept..].fill(filling);
        Some(Self::Bytes { at: *at, bytes })
    }
}

impl<T: Clone, S: Step<T> + Clone> Kept<T, S> {
    fn new(empty: T) -> Self {
        Self {
            durable: empty.clone(),
            seen: empty,
            steps: Vec::new(),
        }
    }

    fn step(&mut self, at: usize, step: S) {
        step.apply(&mut self.seen);
        self.steps.push((Some(at), step));
    }

    /// Makes durable what had ended at `begin`.
    fn sync(&mut self, begin: usize) {
        let (covered, later) = std::mem::take(&mut self.steps)
            .into_iter()
            .partition(|(at, _)| at.is_none_or(|at| at < begin));
        let covered: Vec<(Option<usize>, S)> = covered;
        for (_, step) in &covered {
            step.apply(&mut self.durable);
        }
        self.steps = later;
    }

    /// All of it was before the trace that comes.
    fn end_trace(&mut self) {
        for (at, _) in &mut self.steps {
            *at = None;
        }
    }

    /// The durable state and those of the steps that `choose` gives.
    fn cut(&self, mut choose: impl FnMut(&S) -> Option<S>) -> T {
        let mut state = self.durable.clone();
        for (_, step) in &self.steps {
            if let Some(step) = choose(step) {
                step.apply(&mut state);
            }
        }
        state
    }
}

impl Disk {
    /// The empty folder `root`, which is durable itself.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
            nodes: vec![Node::Folder(Names::new(BTreeMap::new()))],
            deaf_to: None,
        }
    }

    /// The same disk, on which the fsync of a file or folder does nothing.
    #[must_use]
    pub fn deaf_to(mut self, kind: Kind) -> Self {
        self.deaf_to = Some(kind);
        self
    }

    /// The calls that come are of another trace.
    pub fn end_trace(&mut self) {
        for node in &mut self.nodes {
            match node {
                Node::File(file) => file.end_trace(),
                Node::Folder(folder) => folder.end_trace(),
            }
        }
    }

    /// Whether `call` is an fsync of something in the folder.
    #[must_use]
    pub fn is_sync(&self, call: &Call) -> bool {
        let sync = matches!(call.name.as_str(), "fsync" | "fdatasync");
        sync && call
            .paths()
            .first()
            .is_some_and(|path| self.find(path).is_some())
    }

    /// Does what a call of a trace did; calls come in the order of their ends.
    ///
    /// # Panics
    /// If it does what the model does not know.
    pub fn apply(&mut self, call: &Call) {
        let paths = call.paths();
        let (true, Some(path)) = (call.good, paths.first()) else {
            return;
        };
        match call.name.as_str() {
            "openat" if call.args.contains("O_CREAT") && self.find(path).is_none() => {
                self.make(path, call.end, Node::File(Bytes::new(Rc::default())));
            }
            "openat" if call.args.contains("O_TRUNC") => {
                self.write(path, call.end, |_| Write::Length(0));
            }
            "mkdir" | "mkdirat" => {
                self.make(path, call.end, Node::Folder(Names::new(BTreeMap::new())));
            }
            "write" => self.write(path, call.end, |end| Write::Bytes {
                at: end,
                bytes: call.bytes.clone(),
            }),
            "pwrite64" => self.write(path, call.end, |_| Write::Bytes {
                at: call.number(0),
                bytes: call.bytes.clone(),
            }),
            "ftruncate" => self.write(path, call.end, |_| Write::Length(call.number(0))),
            "unlink" | "unlinkat" | "rmdir" => self.rename(path, None, call.end),
            name if name.starts_with("rename") => self.rename(path, Some(paths[1]), call.end),
            "fsync" | "fdatasync" => self.sync(path, call.begin),
            _ => {}
        }
    }

    fn sync(&mut self, path: &str, begin: usize) {
        let Some(node) = self.find(path) else { return };
        match &mut self.nodes[node] {
            Node::File(file) if self.deaf_to != Some(Kind::File) => file.sync(begin),
            Node::Folder(folder) if self.deaf_to != Some(Kind::Folder) => folder.sync(begin),
            _ => {}
        }
    }

    /// `write` gets the file's length.
    fn write(&mut self, path: &str, at: usize, write: impl FnOnce(usize) -> Write) {
        let node = self.find(path);
        if let Some(Node::File(file)) = node.map(|node| &mut self.nodes[node]) {
            let write = write(file.seen.len());
            file.step(at, write);
        }
    }

    fn make(&mut self, path: &str, at: usize, node: Node) {
        let number = self.nodes.len();
        if let Some((folder, name)) = self.folder_of(path) {
            folder.step(
                at,
                Rename {
                    gone: None,
                    come: Some((name, number)),
                },
            );
            self.nodes.push(node);
        }
    }

    /// Takes the name `from` away; `to` names the same thing then.
    fn rename(&mut self, from: &str, to: Option<&str>, at: usize) {
        let Some(node) = self.find(from) else { return };
        let to = to.map(Path::new);
        assert!(
            to.is_none_or(|to| to.parent() == Path::new(from).parent()),
            "renamed from one folder to another: {from}"
        );
        let to = to.and_then(Path::file_name);
        let come = to.map(|name| (name.to_string_lossy().into_owned(), node));
        if let Some((folder, name)) = self.folder_of(from) {
            let gone = Some(name);
            folder.step(at, Rename { gone, come });
        }
    }

    /// The folder that holds this name, and the name.
    fn folder_of(&mut self, path: &str) -> Option<(&mut Names, String)> {
        let path = Path::new(path);
        let node = self.find(path.parent()?.to_str()?)?;
        let name = path.file_name()?.to_string_lossy().into_owned();
        match &mut self.nodes[node] {
            Node::Folder(folder) => Some((folder, name)),
            Node::File(_) => None,
        }
    }

    /// What a process finds at `path`, if that is in the folder.
    fn find(&self, path: &str) -> Option<usize> {
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        below
            .iter()
            .try_fold(0, |node, name| match &self.nodes[node] {
                Node::Folder(folder) => folder.seen.get(name.to_str()?).copied(),
                Node::File(_) => None,
            })
    }

    /// What processes see.
    #[must_use]
    pub fn seen(&self) -> Image {
        self.cut(&mut Dice::new(0), 100)
    }

    /// What there may be if the power goes now and `percent` of what is not synced happens to be on the disk.
    #[must_use]
    pub fn cut(&self, dice: &mut Dice, percent: usize) -> Image {
        let mut image = Image::default();
        self.cut_folder(0, "", dice, percent, &mut image);
        image
    }

    fn cut_folder(
        &self,
        node: usize,
        prefix: &str,
        dice: &mut Dice,
        percent: usize,
        image: &mut Image,
    ) {
        let Node::Folder(folder) = &self.nodes[node] else {
            return;
        };
        let names = folder.cut(|step| (dice.below(100) < percent).then(|| step.clone()));
        for (name, node) in names {
            let path = format!("{prefix}{name}");
            let entry = match &self.nodes[node] {
                Node::Folder(_) => {
                    self.cut_folder(node, &format!("{path}/"), dice, percent, image);
                    Entry::Folder
                }
                Node::File(file) => {
                    let bytes = file.cut(|write| {
                        if dice.below(100) < percent {
                            Some(write.clone())
                        } else {
                            write.torn(dice).filter(|_| dice.below(2) == 0)
                        }
                    });
                    let whole = bytes == file.seen;
                    Entry::File { bytes, whole }
                }
            };
            image.0.insert(path, entry);
        }
    }
}

impl Image {
    /// The bytes of a file, if it is there.
    #[must_use]
    pub fn bytes(&self, path: &str) -> Option<&[u8]> {
        match self.0.get(path) {
            Some(Entry::File { bytes, .. }) => Some(bytes),
            _ => None,
        }
    }

    /// Equal for images that hold the same.
    #[must_use]
    pub fn hash(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for (path, entry) in &self.0 {
            let hash = match entry {
                Entry::Folder => blake3::hash(&[]),
                Entry::File { bytes, .. } => blake3::keyed_hash(&[1; 32], bytes),
            };
            hasher.update(blake3::hash(path.as_bytes()).as_bytes());
            hasher.update(hash.as_bytes());
        }
        hasher.finalize()
    }

    /// Puts it in place of the folder `root`.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub fn write(&self, root: &Path) {
        let _ = fs::remove_dir_all(root);
        fs::create_dir_all(root).expect("a folder");
        // A folder's path stands before those below it.
        for (path, entry) in &self.0 {
            match entry {
                Entry::Folder => fs::create_dir(root.join(path)).expect("a folder"),
                Entry::File { bytes, .. } => fs::write(root.join(path), &**bytes).expect("a file"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strace::parse;

    /// A file that is written, renamed and synced in the right order, and calls after each of which the power may go.
    const CALLS: [&str; 6] = [
        r#"1 openat(AT_FDCWD</>, "/d/.a.tmp", O_RDWR|O_CREAT|O_EXCL, 0644) = 3</d/.a.tmp>"#,
        r#"1 write(3</d/.a.tmp>, "\x61\x62\x63", 3) = 3"#,
        "1 fsync(3</d/.a.tmp>) = 0",
        r#"1 rename("/d/.a.tmp", "/d/a") = 0"#,
        "1 fsync(3</d>) = 0",
        r#"1 unlink("/d/a") = 0"#,
    ];

    /// What may be there after the first `count` calls, as text.
    fn states(disk: &Disk, count: usize) -> BTreeMap<String, bool> {
        let mut disk = disk.clone();
        for call in parse(&CALLS[..count].join("\n")) {
            disk.apply(&call);
        }
        let mut dice = Dice::new(1);
        let mut found = BTreeMap::new();
        for round in 0..400 {
            let mut text = String::new();
            let mut all_whole = true;
            for (path, entry) in disk.cut(&mut dice, round % 101).0 {
                if let Entry::File { bytes, whole } = entry {
                    text.push_str(&format!("{path}={} ", String::from_utf8_lossy(&bytes)));
                    all_whole &= whole;
                }
            }
            found.insert(text, all_whole);
        }
        found
    }

    #[test]
    fn what_is_synced_is_there_and_nothing_else_is_sure() {
        let disk = Disk::new(Path::new("/d"));
        let after = |count| states(&disk, count);
        let names = |count| after(count).into_keys().collect::<Vec<_>>();
        assert_eq!(names(1), ["", ".a.tmp= "]);
        let torn = after(2);
        assert!(torn.contains_key("") && torn.contains_key(".a.tmp= "));
        assert!(torn[".a.tmp=abc "] && !torn[".a.tmp=a\0\0 "]);
        assert_eq!(names(3), ["", ".a.tmp=abc "]);
        assert_eq!(names(4), ["", ".a.tmp=abc ", "a=abc "]);
        assert_eq!(names(5), ["a=abc "]);
        assert_eq!(names(6), ["", "a=abc "]);
    }

    #[test]
    fn a_sync_that_does_nothing_leaves_nothing_sure() {
        let disk = Disk::new(Path::new("/d"));
        let names = states(&disk.clone().deaf_to(Kind::Folder), 5);
        assert!(names.contains_key("") && names.values().all(|whole| *whole));
        let bytes = states(&disk.deaf_to(Kind::File), 5);
        assert!(bytes.contains_key("a= ") && !bytes["a= "]);
    }

    /// A sync says nothing of a write that ends after it began.
    #[test]
    fn a_sync_covers_what_ended_before_it() {
        let text = r#"1 openat(AT_FDCWD</>, "/d/a", O_RDWR|O_CREAT, 0644) = 3</d/a>
2 fsync(3</d/a> <unfinished ...>
1 write(3</d/a>, "\x61", 1) = 1
2 <... fsync resumed>) = 0
1 fsync(4</d>) = 0
"#;
        let mut disk = Disk::new(Path::new("/d"));
        for call in parse(text) {
            disk.apply(&call);
        }
        assert_eq!(disk.seen().bytes("a"), Some(&b"a"[..]));
        assert_eq!(disk.cut(&mut Dice::new(3), 0).bytes("a"), Some(&b""[..]));
    }
}
