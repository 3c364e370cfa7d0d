mod ends;
mod model;
mod phases;
mod rules;
mod world;
