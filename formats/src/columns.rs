//! The exact schemas of the four Arrow files of a cache, for the writers and for the strict reading side.
//!
//! Owns names, types and nullability. Invariant: what [`schema`] makes is what [`check`] accepts, and nothing else is.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::limits::{MAX_METADATA_BYTES, MAX_METADATA_PAIRS};

/// A 32- or 64-bit integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    I32,
    U32,
    U64,
}

impl Number {
    /// Bytes of one value.
    pub(crate) fn width(self) -> u64 {
        match self {
            Self::I32 | Self::U32 => 4,
            Self::U64 => 8,
        }
    }

    fn data_type(self) -> DataType {
        match self {
            Self::I32 => DataType::Int32,
            Self::U32 => DataType::UInt32,
            Self::U64 => DataType::UInt64,
        }
    }
}

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// LargeUtf8.
    Text,
    /// LargeBinary.
    Bytes,
    /// LargeList of a number.
    List(Number),
    /// LargeList of FixedSizeList of so many Int32.
    ListOfFixed(i32),
    /// FixedSizeBinary of so many bytes.
    FixedBytes(i32),
    /// FixedSizeList of so many Int32.
    Fixed(i32),
    /// One number.
    One(Number),
}

/// A column of a schema.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) nullable: bool,
}

const fn column(name: &'static str, kind: Kind) -> Column {
    Column {
        name,
        kind,
        nullable: false,
    }
}

/// An Arrow file of a cache: what it is called in messages and metadata, and its columns.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) code: &'static str,
    pub(crate) columns: &'static [Column],
}

/// Image shards.
pub(crate) static IMAGE_SHARD: Table = Table {
    name: "an image shard",
    code: "image-shard",
    columns: &[
        column("key", Kind::FixedBytes(16)),
        column("grid_thw", Kind::Fixed(3)),
        column("size", Kind::Fixed(2)),
        column("patches", Kind::Bytes),
    ],
};

/// Sample shards.
pub(crate) static SAMPLE_SHARD: Table = Table {
    name: "a sample shard",
    code: "sample-shard",
    columns: &[
        column("sample_id", Kind::Text),
        Column {
            name: "record_id",
            kind: Kind::Text,
            nullable: true,
        },
        column("input_ids", Kind::List(Number::I32)),
        column("labels", Kind::List(Number::I32)),
        column("images", Kind::List(Number::U32)),
        column("image_grid_thw", Kind::ListOfFixed(3)),
    ],
};

/// The index of a partition's images.
pub(crate) static IMAGE_INDEX: Table = Table {
    name: "an image index",
    code: "image-index",
    columns: &[
        column("key", Kind::FixedBytes(16)),
        column("shard", Kind::One(Number::U32)),
        column("offset", Kind::One(Number::U64)),
        column("length", Kind::One(Number::U64)),
        column("grid_thw", Kind::Fixed(3)),
        column("size", Kind::Fixed(2)),
        column("checksum", Kind::One(Number::U64)),
    ],
};

/// The index of a partition's samples.
pub(crate) static SAMPLE_INDEX: Table = Table {
    name: "a sample index",
    code: "sample-index",
    columns: &[
        column("shard", Kind::One(Number::U32)),
        column("input_ids", Kind::One(Number::U64)),
        column("labels", Kind::One(Number::U64)),
        column("images", Kind::One(Number::U64)),
        column("image_grid_thw", Kind::One(Number::U64)),
        column("sample_id", Kind::One(Number::U64)),
        column("record_id", Kind::One(Number::U64)),
        column("n_tokens", Kind::One(Number::U32)),
        column("n_loss_tokens", Kind::One(Number::U32)),
        column("n_images", Kind::One(Number::U32)),
        column("n_patches", Kind::One(Number::U32)),
        column("sample_id_bytes", Kind::One(Number::U32)),
        column("record_id_bytes", Kind::One(Number::U32)),
        column("checksum", Kind::One(Number::U64)),
    ],
};

/// The element field of every list.
pub(crate) fn item(data_type: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", data_type, false))
}

fn data_type(kind: Kind) -> DataType {
    match kind {
        Kind::Text => DataType::LargeUtf8,
        Kind::Bytes => DataType::LargeBinary,
        Kind::List(number) => DataType::LargeList(item(number.data_type())),
        Kind::ListOfFixed(width) => DataType::LargeList(item(data_type(Kind::Fixed(width)))),
        Kind::FixedBytes(width) => DataType::FixedSizeBinary(width),
        Kind::Fixed(width) => DataType::FixedSizeList(item(DataType::Int32), width),
        Kind::One(number) => number.data_type(),
    }
}

/// The Arrow schema of `table`. Arrow sorts the metadata when it encodes it.
pub(crate) fn schema(table: &Table, metadata: &BTreeMap<String, String>) -> SchemaRef {
    let fields: Vec<Field> = table
        .columns
        .iter()
        .map(|column| Field::new(column.name, data_type(column.kind), column.nullable))
        .collect();
    let metadata: HashMap<String, String> = metadata
        .iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    Arc::new(Schema::new_with_metadata(fields, metadata))
}

/// Checks that `found` is the schema of `table`, and returns its metadata.
pub(crate) fn check(
    table: &Table,
    found: arrow_ipc::Schema<'_>,
) -> Result<BTreeMap<String, String>, &'static str> {
    if found.endianness() != arrow_ipc::Endianness::Little {
        return Err("not little-endian");
    }
    if found
        .features()
        .is_some_and(|features| !features.is_empty())
    {
        return Err("unknown schema features");
    }
    let fields = found.fields().ok_or("no columns")?;
    if fields.len() != table.columns.len() {
        return Err("another number of columns");
    }
    for (field, column) in fields.iter().zip(table.columns) {
        check_field(field, column.name, column.nullable, &data_type(column.kind))?;
    }
    metadata(found)
}

fn metadata(found: arrow_ipc::Schema<'_>) -> Result<BTreeMap<String, String>, &'static str> {
    let mut pairs = BTreeMap::new();
    let Some(list) = found.custom_metadata() else {
        return Ok(pairs);
    };
    if list.len() > MAX_METADATA_PAIRS {
        return Err("too many metadata pairs");
    }
    let mut bytes = 0;
    for pair in list {
        let (Some(key), Some(value)) = (pair.key(), pair.value()) else {
            return Err("half a metadata pair");
        };
        bytes += key.len() + value.len();
        if bytes > MAX_METADATA_BYTES {
            return Err("too much metadata");
        }
        if pairs.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err("a metadata key stands twice");
        }
    }
    Ok(pairs)
}

fn check_field(
    field: arrow_ipc::Field<'_>,
    name: &str,
    nullable: bool,
    wanted: &DataType,
) -> Result<(), &'static str> {
    use arrow_ipc::Type;

    let plain =
        field.dictionary().is_none() && field.custom_metadata().is_none_or(|list| list.is_empty());
    if field.name() != Some(name) || field.nullable() != nullable || !plain {
        return Err("another column");
    }
    let int = |bits, signed| {
        field.type_type() == Type::Int
            && field
                .type_as_int()
                .is_some_and(|int| int.bitWidth() == bits && int.is_signed() == signed)
    };
    let (right, child) = match wanted {
        DataType::Int32 => (int(32, true), None),
        DataType::UInt32 => (int(32, false), None),
        DataType::UInt64 => (int(64, false), None),
        DataType::LargeUtf8 => (field.type_type() == Type::LargeUtf8, None),
        DataType::LargeBinary => (field.type_type() == Type::LargeBinary, None),
        DataType::FixedSizeBinary(width) => (
            field
                .type_as_fixed_size_binary()
                .is_some_and(|found| found.byteWidth() == *width),
            None,
        ),
        DataType::LargeList(child) => (field.type_type() == Type::LargeList, Some(child)),
        DataType::FixedSizeList(child, width) => (
            field
                .type_as_fixed_size_list()
                .is_some_and(|found| found.listSize() == *width),
            Some(child),
        ),
        _ => (false, None),
    };
    if !right {
        return Err("another column type");
    }
    let children = field.children();
    match (child, children) {
        (None, None) => Ok(()),
        (None, Some(list)) if list.is_empty() => Ok(()),
        (Some(child), Some(list)) if list.len() == 1 => check_field(
            list.get(0),
            child.name(),
            child.is_nullable(),
            child.data_type(),
        ),
        _ => Err("another number of child columns"),
    }
}
