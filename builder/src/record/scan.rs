//! The fast way to a record's links, for planning: borrows from the line and skips everything else.
//!
//! Owns no rule: whatever it does not expect is left to [`parse`]. Invariant: where `parse` succeeds,
//! the result is exactly its `links`; where it does not, the result says nothing about the record.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::{RecordOptions, Shape, json, parse};
use crate::reject::Reject;

/// The image links of one line, in the order of [`Record::links`](super::Record::links).
///
/// # Errors
/// The reject of [`parse`], when the line cannot even be scanned.
pub fn scan_links<'a>(
    line: &'a [u8],
    shape: Shape,
    options: &RecordOptions,
) -> Result<Vec<Cow<'a, str>>, Reject> {
    let mut links = Vec::new();
    let text = line.strip_prefix(json::BOM).unwrap_or(line);
    let mut source = serde_json::Deserializer::from_slice(text);
    let seed = Line {
        messages: shape == Shape::Messages,
        links: &mut links,
    };
    match seed.deserialize(&mut source).and_then(|()| source.end()) {
        Ok(()) => Ok(links),
        Err(_) => Ok(parse(line, shape, options)?
            .links
            .into_iter()
            .map(Cow::Owned)
            .collect()),
    }
}

/// A string, borrowed from the line unless it holds escapes.
struct Text<'de>(Cow<'de, str>);

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        source.deserialize_str(TextVisitor)
    }
}

/// Keys that lead to links; all others are skipped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    Messages,
    Content,
    Kind,
    Image,
    Images,
    ImageUrl,
    Url,
    Path,
    Other,
}

struct KeyVisitor;

impl Visitor<'_> for KeyVisitor {
    type Value = Key;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Key, E> {
        Ok(match key {
            "messages" => Key::Messages,
            "content" => Key::Content,
            "type" => Key::Kind,
            "image" => Key::Image,
            "images" => Key::Images,
            "image_url" => Key::ImageUrl,
            "url" => Key::Url,
            "path" => Key::Path,
            _ => Key::Other,
        })
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        source.deserialize_str(KeyVisitor)
    }
}

/// The whole line.
struct Line<'de, 'o> {
    messages: bool,
    links: &'o mut Vec<Cow<'de, str>>,
}

impl<'de> DeserializeSeed<'de> for Line<'de, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Line<'de, '_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(key) = entries.next_key::<Key>()? {
            match key {
                Key::Messages if self.messages => {
                    entries.next_value_seed(Each(Message, self.links, PhantomData))?;
                }
                Key::Image | Key::Images if !self.messages => {
                    entries.next_value_seed(Pool(self.links))?;
                }
                _ => {
                    entries.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// The value of `image` or `images`: nothing, a link, or a list of links.
struct Pool<'de, 'o>(&'o mut Vec<Cow<'de, str>>);

impl<'de> DeserializeSeed<'de> for Pool<'de, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Pool<'de, '_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a link or a list of links")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_borrowed_str<E>(self, link: &'de str) -> Result<(), E> {
        if !link.is_empty() {
            self.0.push(Cow::Borrowed(link));
        }
        Ok(())
    }

    fn visit_str<E>(self, link: &str) -> Result<(), E> {
        self.0.push(Cow::Owned(link.to_owned()));
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(Text(link)) = items.next_element()? {
            self.0.push(link);
        }
        Ok(())
    }
}

/// What a list of [`Each`] holds.
trait Entry: Copy {
    /// Reads one entry of the list.
    fn read<'de, A: MapAccess<'de>>(
        self,
        entries: A,
        links: &mut Vec<Cow<'de, str>>,
    ) -> Result<(), A::Error>;
}

/// A list of objects, each read by `T`; a string or null instead of the list holds no links.
struct Each<'de, 'o, T>(T, &'o mut Vec<Cow<'de, str>>, PhantomData<&'de ()>);

impl<'de, T: Entry> DeserializeSeed<'de> for Each<'de, '_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de, T: Entry> Visitor<'de> for Each<'de, '_, T> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of objects")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items
            .next_element_seed(One(self.0, &mut *self.1))?
            .is_some()
        {}
        Ok(())
    }
}

/// One object of such a list.
struct One<'de, 'o, T>(T, &'o mut Vec<Cow<'de, str>>);

impl<'de, T: Entry> DeserializeSeed<'de> for One<'de, '_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de, T: Entry> Visitor<'de> for One<'de, '_, T> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<(), A::Error> {
        self.0.read(entries, self.1)
    }
}

/// One of `messages`.
#[derive(Clone, Copy)]
struct Message;

impl Entry for Message {
    fn read<'de, A: MapAccess<'de>>(
        self,
        mut entries: A,
        links: &mut Vec<Cow<'de, str>>,
    ) -> Result<(), A::Error> {
        while let Some(key) = entries.next_key::<Key>()? {
            if key == Key::Content {
                entries.next_value_seed(Each(Part, &mut *links, PhantomData))?;
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// One part of a message's content.
#[derive(Clone, Copy)]
struct Part;

impl Entry for Part {
    fn read<'de, A: MapAccess<'de>>(
        self,
        mut entries: A,
        links: &mut Vec<Cow<'de, str>>,
    ) -> Result<(), A::Error> {
        let mut is_image = false;
        let [mut image, mut image_url, mut url, mut path] = [None, None, None, None];
        while let Some(key) = entries.next_key::<Key>()? {
            match key {
                Key::Kind => {
                    let kind: Option<Text<'de>> = entries.next_value()?;
                    is_image |=
                        kind.is_some_and(|Text(kind)| kind == "image" || kind == "image_url");
                }
                Key::Image => image = entries.next_value::<Link<'de>>()?.0,
                Key::ImageUrl => image_url = entries.next_value::<Link<'de>>()?.0,
                Key::Url => url = entries.next_value::<Link<'de>>()?.0,
                Key::Path => path = entries.next_value::<Link<'de>>()?.0,
                _ => {
                    entries.next_value::<IgnoredAny>()?;
                }
            }
        }
        if is_image || image.is_some() || image_url.is_some() {
            let link = image.or(image_url).or(url).or(path);
            links.push(link.ok_or_else(|| de::Error::custom("an image part without a link"))?);
        }
        Ok(())
    }
}

/// A link in a part: null, a string, or an object with `url`.
struct Link<'de>(Option<Cow<'de, str>>);

struct LinkVisitor;

impl<'de> Visitor<'de> for LinkVisitor {
    type Value = Link<'de>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a link")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Link(None))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Link(Some(Cow::Borrowed(text))))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Link(Some(Cow::Owned(text.to_owned()))))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut link = None;
        while let Some(key) = entries.next_key::<Key>()? {
            if key == Key::Url {
                link = Some(entries.next_value::<Text<'de>>()?.0);
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        match link {
            Some(link) => Ok(Link(Some(link))),
            None => Err(de::Error::custom("an image object without a url")),
        }
    }
}

impl<'de> Deserialize<'de> for Link<'de> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        source.deserialize_any(LinkVisitor)
    }
}
