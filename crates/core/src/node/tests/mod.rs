mod ends;
mod handover;
mod model;
mod phases;
mod rules;
mod world;
