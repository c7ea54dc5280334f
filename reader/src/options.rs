//! The choices that shape an order.
//!
//! Owns their names, which stand in options, cursors and messages alike. Invariant: a name reads back as its choice.

use std::fmt;
use std::str::FromStr;

use crate::order_error::OrderError;

/// Defines a choice with its lower-case names.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident, $option:literal, { $($(#[$each:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum $name {
            $($(#[$each])* $variant,)+
        }

        impl $name {
            /// The name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $name {
            type Err = OrderError;

            fn from_str(name: &str) -> Result<Self, OrderError> {
                match name {
                    $($text => Ok(Self::$variant),)+
                    other => Err(OrderError::UnknownChoice {
                        option: $option,
                        known: &[$($text),+],
                        given: other.chars().take(64).collect(),
                    }),
                }
            }
        }
    };
}

choice! {
    /// How the units of a partition are ordered within an epoch.
    Shuffle, "shuffle", {
        /// Every order of the partition's units is equally likely.
        #[default]
        Full = "full",
        /// The partition's shards in random order, and each shard's units in random order, one shard after the other.
        Shard = "shard",
        /// As they are stored.
        None = "none",
    }
}

choice! {
    /// Whether units of one length come together.
    Curriculum, "order", {
        /// As they are shuffled.
        #[default]
        Random = "random",
        /// Inside a window of the shuffled order, units of about one length follow each other, those lengths in random order.
        Length = "length",
    }
}

choice! {
    /// What an epoch does with partitions of unequal size.
    Tail, "tail", {
        /// Every partition gives as many units as the smallest non-empty one; shuffled, another subset each epoch.
        #[default]
        Even = "even",
        /// Every unit once; towards the end fewer and fewer partitions take part.
        All = "all",
    }
}

choice! {
    /// What happens to an epoch's last global batch if it is short.
    Last, "last", {
        /// It is not delivered.
        #[default]
        Drop = "drop",
        /// It is filled up with padding rows, which are marked.
        Pad = "pad",
        /// It is an error.
        Error = "error",
    }
}

choice! {
    /// What decides who reads which unit of a global batch, besides where it is held.
    Balance, "balance", {
        /// What units cost: every rank gets about as many tokens and about as many patches.
        #[default]
        Cost = "cost",
        /// The order of positions.
        None = "none",
    }
}

choice! {
    /// Which ranks have images in a micro-step.
    Modalities, "modalities", {
        /// Any may have some and any none.
        #[default]
        Any = "any",
        /// All have one at least, or none has any.
        Same = "same",
    }
}

/// How the units of a global batch are dealt to ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dealing {
    /// By what.
    pub balance: Balance,
    /// Who has images in a micro-step.
    pub modalities: Modalities,
    /// Whether a rank without images gets one outside the loss in a micro-step in which another rank has some.
    pub dummy_image: bool,
}

/// What an order is made from besides the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OrderOptions {
    /// The seed.
    pub seed: u64,
    /// The order within a partition.
    pub shuffle: Shuffle,
    /// What is done to that order.
    pub order: Curriculum,
    /// What to do about unequal partitions.
    pub tail: Tail,
    /// What to do about a short last batch.
    pub last: Last,
}
