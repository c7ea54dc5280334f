//! Rust's errors as Python's exceptions.
//!
//! Owns the table from one to the other. The classes stand in `stoker/errors.py`; each is made of a message and a hint.

use pyo3::prelude::*;
use stoker_builder::Error as BuilderError;
use stoker_formats::Error as FormatsError;
use stoker_reader::{Difference, Error as ReaderError, OrderError, RemoteFault};

/// The classes, under the names that Python gives them.
mod classes {
    use pyo3::import_exception;

    import_exception!(stoker.errors, BuildError);
    import_exception!(stoker.errors, CacheError);
    import_exception!(stoker.errors, ConfigError);
    import_exception!(stoker.errors, CursorError);
    import_exception!(stoker.errors, DamageError);
    import_exception!(stoker.errors, DamagedCursorError);
    import_exception!(stoker.errors, DeviceError);
    import_exception!(stoker.errors, DiskFullError);
    import_exception!(stoker.errors, FetchError);
    import_exception!(stoker.errors, FileError);
    import_exception!(stoker.errors, ForkError);
    import_exception!(stoker.errors, GeometryError);
    import_exception!(stoker.errors, InputError);
    import_exception!(stoker.errors, LockedError);
    import_exception!(stoker.errors, MissingFilesError);
    import_exception!(stoker.errors, ModelError);
    import_exception!(stoker.errors, NewerCursorError);
    import_exception!(stoker.errors, NewerVersionError);
    import_exception!(stoker.errors, NotACacheError);
    import_exception!(stoker.errors, OtherDataError);
    import_exception!(stoker.errors, OtherOrderError);
    import_exception!(stoker.errors, OtherSeedError);
    import_exception!(stoker.errors, OtherWeightsError);
    import_exception!(stoker.errors, RemoteError);
    import_exception!(stoker.errors, StokerError);
    import_exception!(stoker.errors, StoppedError);
    import_exception!(stoker.errors, TooManyRejectsError);
    import_exception!(stoker.errors, UnfinishedBuildError);
}
pub(crate) use classes::ConfigError;
use classes::*;

/// What an exception is made of: the message and the hint.
type Words = (String, Option<String>);

/// The exception of a builder's error.
pub(crate) fn builder_error(error: BuilderError) -> PyErr {
    let words = || (error.to_string(), error.hint());
    match error {
        BuilderError::Usage { .. } | BuilderError::Otherwise { .. } => {
            ConfigError::new_err(words())
        }
        BuilderError::Io { .. } => FileError::new_err(words()),
        BuilderError::DiskFull { .. } => DiskFullError::new_err(words()),
        BuilderError::Model { .. } => ModelError::new_err(words()),
        BuilderError::Input { .. } => InputError::new_err(words()),
        BuilderError::Remote { .. } => InputError::new_err(words()),
        BuilderError::Fetch { .. } => FetchError::new_err(words()),
        BuilderError::Locked { .. } => LockedError::new_err(words()),
        BuilderError::Changed { .. } => UnfinishedBuildError::new_err(words()),
        BuilderError::TooManyRejects { .. } => TooManyRejectsError::new_err(words()),
        BuilderError::Formats(error) => formats_error(&error, words_of_formats(&error)),
        BuilderError::Reader(error) => reader_error(error),
        _ => BuildError::new_err(words()),
    }
}

/// The exception of a reader's error.
pub(crate) fn reader_error(error: ReaderError) -> PyErr {
    let words: Words = (error.to_string(), error.hint().map(Into::into));
    worded(error, words)
}

/// The exception of an error in going on at a cursor: that it leaves no whole batch here is the cursor's as much as any difference.
pub(crate) fn cursor_error(error: ReaderError) -> PyErr {
    match error {
        ReaderError::Order(OrderError::ShortBatch { .. } | OrderError::NoPosition { .. }) => {
            CursorError::new_err((error.to_string(), error.hint().map(Into::<String>::into)))
        }
        error => reader_error(error),
    }
}

/// The class by what happened; the words are those of whoever tells where.
fn worded(error: ReaderError, words: Words) -> PyErr {
    match error {
        ReaderError::InPack { error, .. } | ReaderError::Row { error, .. } => worded(*error, words),
        ReaderError::Fallback {
            fault: RemoteFault::NoRoom { .. },
            ..
        } => ConfigError::new_err(words),
        ReaderError::Fallback { .. } => RemoteError::new_err(words),
        ReaderError::Io { .. } => FileError::new_err(words),
        ReaderError::NotACache { .. } => NotACacheError::new_err(words),
        ReaderError::Missing { .. } => MissingFilesError::new_err(words),
        ReaderError::Damaged { .. } => DamageError::new_err(words),
        ReaderError::Formats { error, .. } => formats_error(&error, words),
        ReaderError::Recipe { .. }
        | ReaderError::RecipeRange { .. }
        | ReaderError::OtherModel { .. }
        | ReaderError::OtherFallback { .. }
        | ReaderError::OtherPack { .. } => CacheError::new_err(words),
        ReaderError::NoRow { .. }
        | ReaderError::NoPartition { .. }
        | ReaderError::NoCaches
        | ReaderError::NoSplit { .. }
        | ReaderError::NoPack { .. }
        | ReaderError::OtherBudget { .. }
        | ReaderError::Option { .. }
        | ReaderError::Elsewhere { .. }
        | ReaderError::Remote { .. } => ConfigError::new_err(words),
        ReaderError::Stopped { .. } => StoppedError::new_err(words),
        ReaderError::Device { .. } => DeviceError::new_err(words),
        ReaderError::Forked { .. } => ForkError::new_err(words),
        ReaderError::Order(error) => order_error(&error, words),
        _ => StokerError::new_err(words),
    }
}

fn order_error(error: &OrderError, words: Words) -> PyErr {
    match error {
        OrderError::DamagedCursor { .. } => DamagedCursorError::new_err(words),
        OrderError::NewerCursor { .. } => NewerCursorError::new_err(words),
        OrderError::Uncounted { .. } => OtherWeightsError::new_err(words),
        OrderError::OtherCursor { what, .. } => match what {
            Difference::Data | Difference::Units => OtherDataError::new_err(words),
            Difference::Seed => OtherSeedError::new_err(words),
            Difference::Weights => OtherWeightsError::new_err(words),
            Difference::Shuffle | Difference::Order | Difference::Tail | Difference::Last => {
                OtherOrderError::new_err(words)
            }
            what if what.is_geometry() => GeometryError::new_err(words),
            _ => CursorError::new_err(words),
        },
        _ => ConfigError::new_err(words),
    }
}

fn words_of_formats(error: &FormatsError) -> Words {
    (error.to_string(), error.hint().map(Into::into))
}

/// The class by what is wrong with the bytes; the words are those of whoever names the file.
fn formats_error(error: &FormatsError, words: Words) -> PyErr {
    match error {
        FormatsError::InFile { source, .. } => formats_error(source, words),
        FormatsError::Io { .. } => FileError::new_err(words),
        FormatsError::NewerVersion { .. } => NewerVersionError::new_err(words),
        FormatsError::Layout { .. }
        | FormatsError::Row { .. }
        | FormatsError::Damaged { .. }
        | FormatsError::Pack { .. }
        | FormatsError::Document { .. } => DamageError::new_err(words),
        _ => CacheError::new_err(words),
    }
}
